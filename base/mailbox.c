/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct base_mailbox {
    pthread_mutex_t lock;
    struct base_message *head;
    struct base_message **tail; /* where the next message is hung */
    int fd;
};

enum base_code base_mailbox_create(struct base_mailbox **mailbox, struct base_error *error)
{
    struct base_mailbox *made = calloc(1, sizeof *made);
    if (!made)
        return base_error_set(error, BASE_NO_MEMORY, "mailbox: memory is out");
    made->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->fd < 0) {
        free(made);
        return base_error_errno(error, errno, "mailbox: eventfd");
    }
    pthread_mutex_init(&made->lock, NULL);
    made->tail = &made->head;
    *mailbox = made;
    return BASE_OK;
}

void base_mailbox_destroy(struct base_mailbox *mailbox)
{
    if (!mailbox)
        return;
    while (base_mailbox_drain(mailbox) > 0) /* a message may post another */
        continue;
    pthread_mutex_destroy(&mailbox->lock);
    close(mailbox->fd);
    free(mailbox);
}

int base_mailbox_fd(const struct base_mailbox *mailbox)
{
    return mailbox->fd;
}

void base_mailbox_post(struct base_mailbox *mailbox, struct base_message *message)
{
    message->next = NULL;
    pthread_mutex_lock(&mailbox->lock);
    bool was_empty = !mailbox->head;
    *mailbox->tail = message;
    mailbox->tail = &message->next;
    /* Under the lock: once it is released the owner may run the message and destroy the mailbox. Only the
     * first message wakes. The counter cannot overflow, so the write cannot fail. */
    if (was_empty) {
        ssize_t written = write(mailbox->fd, &(uint64_t){1}, sizeof(uint64_t));
        (void)written;
    }
    pthread_mutex_unlock(&mailbox->lock);
}

static struct base_message *take_all(struct base_mailbox *mailbox)
{
    uint64_t wakes;
    ssize_t size = read(mailbox->fd, &wakes,
                        sizeof wakes); /* who posts may still hold the lock that it wakes us under */
    (void)size;                        /* nothing to read: nothing was posted */
    pthread_mutex_lock(&mailbox->lock);
    struct base_message *all = mailbox->head;
    mailbox->head = NULL;
    mailbox->tail = &mailbox->head;
    pthread_mutex_unlock(&mailbox->lock);
    return all;
}

int base_mailbox_drain(struct base_mailbox *mailbox)
{
    int count = 0;
    struct base_message *message = take_all(mailbox);
    while (message) {
        struct base_message *next = message->next; /* run may free or post the message again */
        message->run(message);
        message = next;
        count++;
    }
    return count;
}
