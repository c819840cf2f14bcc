/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What chance decides in batch ops: mr_finish_draw of the public header, by torchvision's rules (RandomErasing.get_params, and
 * RandomMixup and RandomCutmix of its references).
 *
 * Packing, fixed for ever (base/philox.h): the batch's key is base_philox_sample_key(seed, first position, stream epoch,
 * occurrence 2^64 - 1), which no sample has.
 *   RandomErasing, op 0 (of view v > 0: op 1 + v), the word `view` is the row: draw 0: double 0 < p erases; draws 1..10, a try each: double 0 the area, double 1 the
 *     logarithm of the ratio; top and left: base_philox_below(domain op, index 2 * row and 2 * row + 1)
 *   mixing, op 1: draw 0: double 0 < .5 is MixUp where both could be, double 1 < p mixes; draw 1: double 0 is lambda, which
 *     Beta(1,1) makes uniform; CutMix's centre: base_philox_below(domain 1, index 0 (x) and 1 (y)); all
 *     views of a row alike, so that its label fits each of them
 */
#ifndef CLIENT_DRAW_H
#define CLIENT_DRAW_H

#include "client/include/millrace/millrace.h"
#include "scheduler/pipeline.h"

/* The numbers of a pipeline's finish and batch sections. UNSUPPORTED: an op that is not known here. INVALID: mixes labels of a
 * dataset without classes. */
enum base_code client_draw_finish(struct mr_finish *finish, const struct scheduler_pipeline *pipeline,
                                  uint32_t classes, uint64_t seed, struct base_error *error);

#endif
