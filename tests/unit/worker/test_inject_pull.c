/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest pulled from another worker, a process where nothing fails, while memory and calls fail here: whole, or told. */
#include "base/address.h"
#include "proto/manifest/manifest.h"
#include "proto/wire/link.h"
#include "proto/wire/messages.h"
#include "tests/support/inject.h"
#include "worker/pull.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ITEMS = 3000 };

static char folder[] = "/tmp/millrace-inject-pull-XXXXXX", original[64], pulled[64],
            address[BASE_ADDRESS_CHARS];
static uint8_t version[BASE_SHA256_BYTES];
static pid_t holder;

/* ---- the holder ---- */

struct serving {
    struct wire_link *link;
    struct manifest *manifest;
};

static enum base_code on_frame(void *context, const struct wire_header *header, const uint8_t *payload,
                               struct base_error *error)
{
    (void)payload;
    const struct serving *serving = context;
    struct wire_header reply = {.type = header->type, .flags = WIRE_FLAG_REPLY, .request = header->request};
    if (header->type == WIRE_HELLO) {
        const struct wire_hello hello = {.version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MAX};
        struct base_buffer out;
        base_buffer_init(&out);
        wire_hello_write(&hello, &out);
        enum base_code code = wire_link_send_buffer(serving->link, &reply, &out, error);
        base_buffer_fini(&out);
        return code;
    }
    const uint8_t *bytes;
    size_t size;
    reply.block = header->block;
    enum base_code code = manifest_page(serving->manifest, header->block, &bytes, &size, error);
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    return code == BASE_OK ? wire_link_send_parts(serving->link, &reply, &part, 1, 1, error) : code;
}

static void on_sent(void *context, uint64_t token, bool done)
{
    (void)context, (void)token, (void)done;
}

static void serve_one(int fd, struct manifest *manifest)
{
    static const struct wire_link_events events = {.frame = on_frame, .sent = on_sent};
    struct serving serving = {.manifest = manifest};
    const struct wire_link_options options = {
        .fd = fd, .events = &events, .context = &serving, .queue_max_bytes = 1 << 20};
    enum base_code code = wire_link_create(&serving.link, &options, NULL);
    while (code == BASE_OK) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        polled.events |= wire_link_wants_write(serving.link) ? POLLOUT : 0;
        poll(&polled, 1, -1);
        code = wire_link_write(serving.link, NULL);
        if (code == BASE_OK)
            code = wire_link_read(serving.link, 1 << 20, NULL);
    }
    wire_link_destroy(serving.link);
}

static void run_holder(int listener)
{
    struct manifest *manifest = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (manifest_open(&manifest, original, version, NULL) != BASE_OK)
        _exit(1);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd >= 0)
            serve_one(fd, manifest);
    }
}

/* ---- the puller ---- */

static enum base_code pull(void *context, struct base_error *error)
{
    (void)context;
    static const _Atomic bool cancel = false;
    const char *const holders[] = {address, address}; /* a second chance */
    const struct worker_pull from = {.addresses = holders,
                                     .address_count = 2,
                                     .version = version,
                                     .path = pulled,
                                     .token_key = "a key of tokens",
                                     .name = "test",
                                     .cancel = &cancel};
    enum base_code code = worker_pull_manifest(&from, error);
    inject_stop();
    struct manifest *manifest = NULL;
    struct base_error why;
    bool there = access(pulled, F_OK) == 0;
    assert_true(there || code != BASE_OK);
    if (there && manifest_open(&manifest, pulled, version, &why) != BASE_OK)
        fail_msg("%s", why.text);
    if (there)
        manifest_close(&manifest);
    unlink(pulled);
    return code;
}

static void pulls(void **state)
{
    (void)state;
    inject_each("worker: pull", INJECT_MEMORY | INJECT_CALL | INJECT_SHORT, pull, NULL);
}

static enum base_code write_original(void)
{
    struct manifest_writer *writer = NULL;
    enum base_code code = manifest_writer_create(&writer, original, NULL);
    if (code == BASE_OK)
        code = manifest_writer_class(writer, "cat", NULL);
    for (uint64_t i = 0; i < ITEMS && code == BASE_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "cat/%06llu.jpg", (unsigned long long)i);
        code = manifest_writer_item(writer, &(struct manifest_item){name, i, 0, 0, 0, 0}, NULL);
    }
    if (code == BASE_OK)
        code = manifest_writer_finish(writer, version, NULL);
    manifest_writer_destroy(writer);
    return code;
}

static int set_up(void **state)
{
    (void)state;
    int listener = -1;
    if (!mkdtemp(folder))
        return -1;
    snprintf(original, sizeof original, "%s/original", folder);
    snprintf(pulled, sizeof pulled, "%s/pulled", folder);
    if (write_original() != BASE_OK || base_address_listen("127.0.0.1:0", &listener, NULL) != BASE_OK ||
        base_address_local(listener, address, sizeof address, NULL) != BASE_OK)
        return -1;
    holder = fork();
    if (holder == 0)
        run_holder(listener);
    close(listener);
    return holder > 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    unlink(original);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pulls)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
