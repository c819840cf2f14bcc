/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/header.h"

#include "base/buffer.h"
#include "base/hash.h"

enum { HASHED_BYTES = WIRE_HEADER_BYTES - 8 };

static const char *const type_names[] = {
    [WIRE_HELLO] = "HELLO", [WIRE_OPEN] = "OPEN",     [WIRE_GET] = "GET",     [WIRE_WAIT] = "WAIT",
    [WIRE_DATA] = "DATA",   [WIRE_MOVED] = "MOVED",   [WIRE_RETRY] = "RETRY", [WIRE_FAIL] = "FAIL",
    [WIRE_MARK] = "MARK",   [WIRE_CANCEL] = "CANCEL", [WIRE_PING] = "PING",   [WIRE_PAGE] = "PAGE",
    [WIRE_LOCAL] = "LOCAL", [WIRE_DONE] = "DONE",
};

bool wire_type_known(uint8_t type)
{
    return type < sizeof type_names / sizeof *type_names && type_names[type];
}

const char *wire_type_name(uint8_t type)
{
    return wire_type_known(type) ? type_names[type] : "unknown";
}

bool wire_header_is_bulk(const struct wire_header *header)
{
    return (header->type == WIRE_DATA && !(header->flags & WIRE_FLAG_LOCAL)) ||
           (header->type == WIRE_PAGE && header->flags & WIRE_FLAG_REPLY);
}

void wire_header_write(const struct wire_header *header, uint8_t bytes[WIRE_HEADER_BYTES])
{
    base_set_u32(bytes, WIRE_MAGIC);
    bytes[4] = header->version ? header->version : WIRE_VERSION_MIN;
    bytes[5] = header->type;
    base_set_u16(bytes + 6, header->flags);
    base_set_u64(bytes + 8, header->request);
    base_set_u32(bytes + 16, header->handle);
    base_set_u32(bytes + 20, header->plan);
    base_set_u32(bytes + 24, header->epoch);
    base_set_u16(bytes + 28, header->from);
    base_set_u16(bytes + 30, header->to);
    base_set_u64(bytes + 32, header->block);
    base_set_u64(bytes + 40, header->length);
    base_set_u16(bytes + 48, header->status);
    base_set_u16(bytes + 50, header->queue);
    base_set_u32(bytes + 52, header->time_ms);
    base_set_u64(bytes + 56, base_hash_xxh3(bytes, HASHED_BYTES));
}

static void parse(const uint8_t bytes[WIRE_HEADER_BYTES], struct wire_header *header)
{
    *header = (struct wire_header){
        .version = bytes[4],
        .type = bytes[5],
        .flags = base_get_u16(bytes + 6),
        .request = base_get_u64(bytes + 8),
        .handle = base_get_u32(bytes + 16),
        .plan = base_get_u32(bytes + 20),
        .epoch = base_get_u32(bytes + 24),
        .from = base_get_u16(bytes + 28),
        .to = base_get_u16(bytes + 30),
        .block = base_get_u64(bytes + 32),
        .length = base_get_u64(bytes + 40),
        .status = base_get_u16(bytes + 48),
        .queue = base_get_u16(bytes + 50),
        .time_ms = base_get_u32(bytes + 52),
    };
}

uint64_t wire_header_length_max(const struct wire_header *header)
{
    if (!wire_header_is_bulk(header))
        return WIRE_SMALL_MAX_BYTES;
    return header->type == WIRE_DATA ? WIRE_DATA_MAX_BYTES : WIRE_PAGE_MAX_BYTES;
}

static enum base_code check_understood(const struct wire_header *header, struct base_error *error)
{
    if (header->version < WIRE_VERSION_MIN || header->version > WIRE_VERSION_MAX)
        return base_error_set(error, BASE_UNSUPPORTED,
                              "frame of protocol version %u; versions %d to %d are spoken here",
                              header->version, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
    if (!(header->flags & WIRE_FLAG_CRITICAL))
        return BASE_OK;
    if (!wire_type_known(header->type))
        return base_error_set(error, BASE_UNSUPPORTED, "critical frame of unknown type %u", header->type);
    if (header->flags & ~WIRE_FLAGS_KNOWN)
        return base_error_set(error, BASE_UNSUPPORTED, "critical %s frame with unknown flags 0x%04x",
                              wire_type_name(header->type), header->flags & ~WIRE_FLAGS_KNOWN);
    return BASE_OK;
}

static enum base_code check_sense(const struct wire_header *header, struct base_error *error)
{
    const char *name = wire_type_name(header->type);
    bool asks = header->type == WIRE_GET || header->type == WIRE_OPEN || header->type == WIRE_PAGE ||
                header->type == WIRE_CANCEL;
    bool has_rows = header->type == WIRE_GET || header->type == WIRE_DATA;
    if (asks && !header->request)
        return base_error_set(error, BASE_CORRUPT, "%s frame with request 0", name);
    if (has_rows && header->from >= header->to)
        return base_error_set(error, BASE_CORRUPT, "%s frame of rows [%u, %u)", name, header->from,
                              header->to);
    if (header->length > wire_header_length_max(header))
        return base_error_set(error, BASE_TOO_LARGE, "%s frame of %llu bytes, over the limit of %llu", name,
                              (unsigned long long)header->length,
                              (unsigned long long)wire_header_length_max(header));
    return BASE_OK;
}

enum base_code wire_header_read(const uint8_t bytes[WIRE_HEADER_BYTES], struct wire_header *header,
                                struct base_error *error)
{
    *header = (struct wire_header){0};
    if (base_get_u32(bytes) != WIRE_MAGIC)
        return base_error_set(error, BASE_CORRUPT, "not a millrace frame: magic %08x", base_get_u32(bytes));
    if (base_get_u64(bytes + HASHED_BYTES) != base_hash_xxh3(bytes, HASHED_BYTES))
        return base_error_set(error, BASE_CORRUPT, "frame header does not match its checksum");
    parse(bytes, header);
    enum base_code code = check_understood(header, error);
    return code == BASE_OK ? check_sense(header, error) : code;
}
