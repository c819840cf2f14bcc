/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants. Each is a function: it looks, and fails the world under its own name; the rule that it holds stands over
 * it in check.c. They are called at the step that could break them, or each 250 ms, or at the end. */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include "tests/sim/sim.h"

/* what a trainer is given */
void sim_check_start(struct sim_rank *rank);
void sim_check_resume(struct sim_rank *rank, struct scheduler_cursor wanted);
void sim_check_together(struct sim_rank *rank);
void sim_check_step(struct sim_rank *rank, const struct client_step *step, const struct sim_step *wanted);
void sim_check_row(struct sim_rank *rank, const struct client_step *step, const struct sim_step *wanted,
                   uint32_t row);
void sim_check_cursor(struct sim_rank *rank, const struct client_step *step);
void sim_check_once(struct sim_rank *rank, uint64_t position, bool again);
void sim_check_saved(struct sim_job *job, uint64_t position, bool delivered);
void sim_check_end(struct sim_rank *rank);
void sim_check_even(struct sim_job *job);
void sim_check_fenced(struct sim_rank *rank);
void sim_check_refused(struct sim_job *job);
void sim_check_told(struct sim_rank *rank, enum base_code code, const struct base_error *error);

/* what a client does */
void sim_check_connection(struct sim_rank *rank, const struct client_action *action);
void sim_check_mark(struct sim_rank *rank, struct scheduler_cursor mark);
void sim_check_in_flight(struct sim_rank *rank, const struct sim_link *link,
                         const struct client_action *action);
void sim_check_insist(struct sim_rank *rank, const struct client_action *action);
void sim_check_hedge(struct sim_rank *rank);
void sim_check_arrival(struct sim_link *link, const struct sim_frame *frame);
void sim_check_place(struct sim_link *link, const struct sim_frame *frame);

/* what a worker does */
void sim_check_budget(struct sim_worker *worker);
void sim_check_memory(struct sim_worker *worker, const struct sim_extent *wanted);
void sim_check_make(struct sim_worker *worker, const struct worker_action *action,
                    const struct worker_sibling *block);
void sim_check_sibling(struct sim_worker *worker, const struct sim_stream *stream,
                       const struct sim_stream *sibling);
void sim_check_sent(struct sim_worker *worker, const struct sim_link *link,
                    const struct worker_action *action, const struct sim_extent *found);
void sim_check_pinned(struct sim_link *link, const struct sim_frame *frame);
void sim_check_waiting(struct sim_link *link, uint64_t request, const char *how);
void sim_check_fail(struct sim_worker *worker, const struct sim_link *link,
                    const struct worker_action *action);
void sim_check_claim(struct sim_link *link, const struct sim_frame *get);
void sim_check_age(struct sim_link *link);
void sim_check_served(struct sim_worker *worker, const struct sim_stream *stream);

/* what the scheduler does */
void sim_check_plan_version(struct sim_world *world, const struct sim_stream *stream,
                            const struct scheduler_plan *known, const struct scheduler_plan *plan);
void sim_check_told_cursor(const struct sim_rank *rank, const struct scheduler_job *job);
void sim_check_plan_kept(struct sim_world *world, const struct sim_stream *stream,
                         const struct scheduler_plan *before, const struct scheduler_plan *plan);
void sim_check_plan_new(struct sim_world *world, struct sim_stream *stream,
                        const struct scheduler_plan *before, const struct scheduler_plan *plan);

/* all together */
void sim_check_progress(struct sim_world *world);
void sim_check_rest(struct sim_world *world);
void sim_check_quiet(struct sim_world *world);
void sim_check_remade(struct sim_world *world);

#endif
