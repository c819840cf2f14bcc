/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows between two programs of one host: the worker's staging memory is a sealed memfd, which it hands to trainers that run as its own
 * user (docs/adr/0009). All else goes over the connection as ever.
 *
 *   HELLO, HELLO+REPLY   feature WIRE_FEATURE_LOCAL in both
 *   LOCAL   worker: 16 bytes, the name of its Unix socket; whoever connects to it and may, gets the descriptor
 *   LOCAL   client, empty: it is mapped here; from now on DATA may come as below
 *   DATA    with WIRE_FLAG_LOCAL: where the rows lie; the worker keeps them there until
 *   DONE    client: u64 loan, one or more: they were copied
 *
 * Payload of such a DATA: u64 loan, u8 n, n runs of u64 offset and u64 size, then the head; a whole DATA payload (rows.h) is the head
 * and these runs, one behind the other.
 */
#ifndef PROTO_WIRE_LOCAL_H
#define PROTO_WIRE_LOCAL_H

#include "base/buffer.h"
#include "base/error.h"
#include "proto/wire/rows.h"

#include <sys/socket.h>
#include <sys/un.h>

#define WIRE_LOCAL_NAME_BYTES 16

struct wire_local_run {
    uint64_t offset, size;
};
struct wire_local_part {
    uint64_t loan;   /* not 0 */
    uint64_t length; /* of the whole payload: head and runs */
    int run_count;
    struct wire_local_run runs[WIRE_PART_RUNS];
    const uint8_t *head; /* a view */
    size_t head_bytes;
};
void wire_local_write(const struct wire_local_part *part, struct base_buffer *out);
/* CORRUPT, too, when a run is empty or does not lie in the `mapped_bytes` of the memory, or when it is over DATA's limit. */
enum base_code wire_local_read(const uint8_t *bytes, size_t size, uint64_t mapped_bytes,
                               struct wire_local_part *part, struct base_error *error);

/* One more in the payload of a DONE. */
void wire_done_write(uint64_t loan, struct base_buffer *out);
/* How many there are; i-th: wire_done_loan. */
enum base_code wire_done_read(size_t size, uint32_t *count, struct base_error *error);
uint64_t wire_done_loan(const uint8_t *bytes, uint32_t i);

/* Maps the memory (fd -1: private memory) at an address where it can have large pages; NULL: errno says why not. */
#define WIRE_LOCAL_PAGE_BYTES (UINT64_C(2) << 20)
void *wire_local_map(int fd, uint64_t size_bytes, int protection);

/* The Unix socket of that name: abstract, so that it ends with its worker. Returns the address's size. */
socklen_t wire_local_address(const uint8_t name[WIRE_LOCAL_NAME_BYTES], struct sockaddr_un *address);
/* The other end of that socket runs as our own user: nobody else's memory is given out or read. `pid`: its process, 0 where it
 * cannot be seen; may be NULL. */
bool wire_local_is_ours(int fd, pid_t *pid);

#endif
