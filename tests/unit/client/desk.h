/* SPDX-License-Identifier: Apache-2.0 */
/* One client machine on a desk: the tests play its owner, its workers and its trainer, by hand. */
#ifndef TESTS_UNIT_CLIENT_DESK_H
#define TESTS_UNIT_CLIENT_DESK_H

#include "base/clock.h"
#include "client/src/core.h"

#define MS BASE_NS_PER_MS
#define DESK_WORKERS 3
#define DESK_ACTIONS 512

struct desk {
    struct client_core *core;
    struct client_core_options options;
    struct scheduler_plan plan;
    int64_t now_ns;
    struct client_action actions[DESK_ACTIONS]; /* of the latest round */
    int count;
};

struct client_core_options desk_options(void);
/* All that the machine wants now. */
void desk_act(struct desk *desk);
void desk_later(struct desk *desk, int64_t ms);
/* Virtual time passes as an owner lets it: woken whenever the machine asked to be. Actions of the last wake are kept. */
void desk_pass(struct desk *desk, int64_t ms);
/* Actions of the latest round; worker 0: any. */
int desk_count(const struct desk *desk, enum client_action_kind kind, uint64_t worker);
const struct client_action *desk_find(const struct desk *desk, enum client_action_kind kind);
void desk_give_plan(struct desk *desk, int workers);
void desk_come_up(struct desk *desk, uint64_t worker, uint32_t cap);
/* All `workers` of a first plan are up. */
void desk_start(struct desk *desk, const struct client_core_options *options, int workers, uint32_t cap);
void desk_finish(struct desk *desk);
/* Its header comes. */
enum client_placed desk_place(struct desk *desk, const struct client_action *get, struct client_place *where);
/* Rows with status `status` in the first of them. */
void desk_answer(struct desk *desk, const struct client_action *get, uint8_t status);
/* Every GET of the latest round. */
void desk_answer_all(struct desk *desk, uint8_t status);
struct base_error desk_cause(enum base_code code, const char *text);

#endif
