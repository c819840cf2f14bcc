/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from any thread to one loop thread: an intrusive queue and an eventfd that becomes readable.
 * post: any thread. take: the owner only. A message is owned by the mailbox between the two.
 */
#ifndef BASE_MAILBOX_H
#define BASE_MAILBOX_H

#include "base/error.h"

struct base_message {
    struct base_message *next;
    void (*run)(struct base_message *message); /* called by the owner; frees or reuses the message */
};

struct base_mailbox;

enum base_code base_mailbox_create(struct base_mailbox **mailbox, struct base_error *error);
/* Messages that were never run are run: after destroy nothing is pending. NULL is fine. */
void base_mailbox_destroy(struct base_mailbox *mailbox);

int base_mailbox_fd(const struct base_mailbox *mailbox); /* poll for reading; the mailbox keeps it */
void base_mailbox_post(struct base_mailbox *mailbox, struct base_message *message);
/* Runs all that is queued, in order; returns how many. */
int base_mailbox_drain(struct base_mailbox *mailbox);

#endif
