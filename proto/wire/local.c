/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire/local.h"

#include "proto/wire/header.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOAN_BYTES = 8 };

void wire_local_write(const struct wire_local_part *part, struct base_buffer *out)
{
    base_buffer_put_u64(out, part->loan);
    base_buffer_put_u8(out, (uint8_t)part->run_count);
    for (int i = 0; i < part->run_count; i++) {
        base_buffer_put_u64(out, part->runs[i].offset);
        base_buffer_put_u64(out, part->runs[i].size);
    }
    base_buffer_put(out, part->head, part->head_bytes);
}

static bool lies_in(const struct wire_local_run *run, uint64_t mapped_bytes)
{
    return run->size > 0 && run->offset <= mapped_bytes && run->size <= mapped_bytes - run->offset;
}

enum base_code wire_local_read(const uint8_t *bytes, size_t size, uint64_t mapped_bytes,
                               struct wire_local_part *part, struct base_error *error)
{
    struct base_reader reader = base_reader_of(bytes, size);
    *part = (struct wire_local_part){.loan = base_reader_u64(&reader)};
    part->run_count = base_reader_u8(&reader);
    if (reader.failed || part->loan == 0 || part->run_count > WIRE_PART_RUNS)
        return base_error_set(error, BASE_CORRUPT, "local DATA payload of %zu bytes with %d runs", size,
                              part->run_count);
    for (int i = 0; i < part->run_count; i++) {
        struct wire_local_run run = {.offset = base_reader_u64(&reader)};
        run.size = base_reader_u64(&reader);
        if (!lies_in(&run, mapped_bytes) || run.size > WIRE_DATA_MAX_BYTES - part->length)
            return base_error_set(error, BASE_CORRUPT,
                                  "local DATA: run %d of %llu bytes at %llu does not lie in %llu bytes", i,
                                  (unsigned long long)run.size, (unsigned long long)run.offset,
                                  (unsigned long long)mapped_bytes);
        part->runs[i] = run;
        part->length += run.size;
    }
    part->head_bytes = size - reader.at;
    part->head = base_reader_view(&reader, part->head_bytes);
    part->length += part->head_bytes;
    if (!base_reader_done(&reader) || part->head_bytes == 0 || part->length > WIRE_DATA_MAX_BYTES)
        return base_error_set(error, BASE_CORRUPT, "local DATA payload of %zu bytes is cut or too large",
                              size);
    return BASE_OK;
}

void wire_done_write(uint64_t loan, struct base_buffer *out)
{
    base_buffer_put_u64(out, loan);
}

enum base_code wire_done_read(size_t size, uint32_t *count, struct base_error *error)
{
    *count = (uint32_t)(size / LOAN_BYTES);
    if (size == 0 || size % LOAN_BYTES != 0)
        return base_error_set(error, BASE_CORRUPT, "DONE payload of %zu bytes", size);
    return BASE_OK;
}

uint64_t wire_done_loan(const uint8_t *bytes, uint32_t i)
{
    return base_get_u64(bytes + (size_t)i * LOAN_BYTES);
}

/* A large page must lie at a multiple of its size here, as it does in the file. */
void *wire_local_map(int fd, uint64_t size_bytes, int protection)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t room_bytes = size_bytes + WIRE_LOCAL_PAGE_BYTES;
    uint8_t *room = mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    uint64_t before = -(uintptr_t)room % WIRE_LOCAL_PAGE_BYTES;
    void *memory = mmap(room + before, size_bytes, protection, flags | MAP_FIXED, fd, 0);
    if (memory == MAP_FAILED) {
        munmap(room, room_bytes);
        return NULL;
    }
    uint64_t small_end = (before + size_bytes + 4095) / 4096 * 4096;
    if (before > 0)
        munmap(room, before);
    munmap(room + small_end, room_bytes - small_end);
    return memory;
}

socklen_t wire_local_address(const uint8_t name[WIRE_LOCAL_NAME_BYTES], struct sockaddr_un *address)
{
    char *at = address->sun_path + 1; /* behind the zero byte that makes it abstract */
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    at += sprintf(at, "millrace-");
    for (int i = 0; i < WIRE_LOCAL_NAME_BYTES; i++)
        at += sprintf(at, "%02x", name[i]);
    return (socklen_t)(at - (char *)address);
}

bool wire_local_is_ours(int fd, pid_t *pid)
{
    struct ucred who;
    socklen_t size = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.uid != geteuid())
        return false;
    if (pid)
        *pid = who.pid;
    return true;
}
