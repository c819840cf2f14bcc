/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frame header of the data port, 64 bytes, little endian:
 *   magic4 version1 type1 flags2 | request8 | handle4 plan4 | epoch4 from2 to2 | block8 | length8
 *   | status2 queue2 slack_or_eta_ms4 | xxh3(the 56 bytes before)8
 * Times are relative milliseconds: no clock crosses the wire.
 */
#ifndef PROTO_WIRE_HEADER_H
#define PROTO_WIRE_HEADER_H

#include "base/error.h"

#define WIRE_HEADER_BYTES 64
#define WIRE_MAGIC UINT32_C(0x4352524D) /* "MRRC" */
#define WIRE_VERSION_MIN 1
#define WIRE_VERSION_MAX 1
#define WIRE_SMALL_MAX_BYTES 65536    /* payload of every frame but DATA and PAGE */
#define WIRE_PAGE_MAX_BYTES (1 << 20) /* payload of PAGE */
#define WIRE_DATA_MAX_BYTES (UINT64_C(1) << 31)

enum wire_type {
    WIRE_HELLO = 1,   /* both ways, first; see messages.h for payloads */
    WIRE_OPEN = 2,    /* client: a handle for (stream, fields, job, rank); worker: back, with its caps */
    WIRE_GET = 3,     /* client: rows [from, to) of a block */
    WIRE_WAIT = 4,    /* worker: status WIRE_WAIT_*, queue = requests before it, eta */
    WIRE_DATA = 5,    /* worker: the part; layout in rows.h */
    WIRE_MOVED = 6,   /* worker: not the home; payload: the home's id; plan: the version that says so */
    WIRE_RETRY = 7,   /* worker: status = base_code (retryable), after_ms in eta; payload: text */
    WIRE_FAIL = 8,    /* either: status = base_code; payload: text; request 0: the connection ends after it */
    WIRE_MARK = 9,    /* client: low-water of a handle, also sent unasked each second */
    WIRE_CANCEL = 10, /* client: forget a request; no answer or the one already on its way */
    WIRE_PING = 11,   /* either: I am alive; never answered */
    WIRE_PAGE = 12,   /* client: page `block` of a manifest, payload: version 32 bytes; worker: its bytes */
    WIRE_LOCAL = 13,  /* both: rows without a socket, see local.h; only where both said the feature */
    WIRE_DONE = 14,   /* client: local rows were copied */
};

enum {
    WIRE_FLAG_CRITICAL = 1 << 15, /* with an unknown flag or type: FAIL; without it both are ignored */
    WIRE_FLAG_INSIST = 1 << 0,    /* GET: make it, whatever the plan says */
    WIRE_FLAG_DEATH = 1 << 1,     /* GET with INSIST: the home died for this client (for remade metrics) */
    WIRE_FLAG_REPLY = 1 << 2,     /* HELLO, OPEN, PAGE: the worker's answer */
    WIRE_FLAG_HEDGE = 1 << 3,     /* GET with INSIST: the home is silent (for remade metrics) */
    WIRE_FLAG_LOCAL = 1 << 4,     /* DATA: not the rows, but where they lie */
};
#define WIRE_FLAGS_KNOWN                                                                                     \
    (WIRE_FLAG_CRITICAL | WIRE_FLAG_INSIST | WIRE_FLAG_DEATH | WIRE_FLAG_REPLY | WIRE_FLAG_HEDGE |           \
     WIRE_FLAG_LOCAL)

/* Bits of HELLO's features. */
enum { WIRE_FEATURE_LOCAL = 1 << 0 };

enum { WIRE_WAIT_QUEUED = 1, WIRE_WAIT_MAKING = 2 };

struct wire_header {
    uint8_t version; /* written as WIRE_VERSION_MIN when 0: what HELLO always carries */
    uint8_t type;
    uint16_t flags;
    uint64_t request; /* chosen by the client, never 0 for GET, OPEN, PAGE; answers carry it */
    uint32_t handle;  /* chosen by the client at OPEN */
    uint32_t plan;    /* plan version the sender has */
    uint32_t epoch;   /* stream epoch (0 where the stream does not use it) */
    uint16_t from, to;
    uint64_t block, length; /* length: payload bytes that follow */
    uint16_t status, queue;
    uint32_t time_ms; /* slack (GET), eta (WAIT), after (RETRY) */
};

void wire_header_write(const struct wire_header *header, uint8_t bytes[WIRE_HEADER_BYTES]);
/* Checks magic, checksum, version, unknown critical flags and types, the length against the type's limit, and
 * that GET, OPEN, PAGE and CANCEL name a request and GET and DATA some rows. CORRUPT, TOO_LARGE: drop the
 * connection. UNSUPPORTED: version, or a critical frame that is not understood. The header is filled when
 * its checksum is right (else zeros), so that a FAIL can name the request. A type that is not known and not critical is BASE_OK: skip
 * its payload (wire_type_known). */
enum base_code wire_header_read(const uint8_t bytes[WIRE_HEADER_BYTES], struct wire_header *header,
                                struct base_error *error);
bool wire_type_known(uint8_t type);
const char *wire_type_name(uint8_t type);                          /* "GET"; "unknown" for other numbers */
uint64_t wire_header_length_max(const struct wire_header *header); /* of its payload, by its type */
/* True when the payload goes straight into place: DATA that is not local, and the answer to PAGE. */
bool wire_header_is_bulk(const struct wire_header *header);

#endif
