/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mailbox.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { THREADS = 4, EACH = 5000, WAIT_MS = 10000 };

struct note {
    struct base_message message; /* first, so that a message is its note */
    int thread, number;
};

static struct base_mailbox *box;
static struct note notes[THREADS][EACH];
static int seen[THREADS];

static void see(struct base_message *message)
{
    struct note *note = (struct note *)message;
    assert_int_equal(note->number, seen[note->thread]);
    seen[note->thread]++;
}

static void *post_all(void *argument)
{
    struct note *mine = argument;
    for (int i = 0; i < EACH; i++)
        base_mailbox_post(box, &mine[i].message);
    return NULL;
}

static bool readable(int timeout_ms)
{
    struct pollfd poller = {.fd = base_mailbox_fd(box), .events = POLLIN};
    return poll(&poller, 1, timeout_ms) == 1;
}

/* Every message of every thread, each thread's in its order, by waiting on the descriptor alone. */
static void many_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    assert_int_equal(base_mailbox_create(&box, NULL), BASE_OK);
    for (int t = 0; t < THREADS; t++) {
        for (int i = 0; i < EACH; i++)
            notes[t][i] = (struct note){.message.run = see, .thread = t, .number = i};
        assert_int_equal(pthread_create(&threads[t], NULL, post_all, notes[t]), 0);
    }
    for (int total = 0; total < THREADS * EACH;) {
        assert_true(readable(WAIT_MS));
        total += base_mailbox_drain(box);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        assert_int_equal(seen[t], EACH);
    }
    assert_false(readable(0));
    assert_int_equal(base_mailbox_drain(box), 0);
    base_mailbox_destroy(box);
}

static int posted_again;

static void post_again_twice(struct base_message *message)
{
    if (posted_again++ < 2)
        base_mailbox_post(box, message);
}

static void a_message_may_post_itself(void **state)
{
    (void)state;
    struct base_message message = {.run = post_again_twice};
    posted_again = 0;
    assert_int_equal(base_mailbox_create(&box, NULL), BASE_OK);
    base_mailbox_post(box, &message);
    assert_int_equal(base_mailbox_drain(box), 1); /* what was queued then, not for ever */
    assert_true(readable(0));
    base_mailbox_destroy(box); /* runs what is left */
    assert_int_equal(posted_again, 3);
    base_mailbox_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads),
        cmocka_unit_test(a_message_may_post_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
