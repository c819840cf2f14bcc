/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures that look and compress like photographs: a lit background with a horizon, texture over many scales, things with
 * edges, lens and sensor. A picture is a function of (seed, index) alone; only IEEE arithmetic and sqrt are used, so it is the
 * same everywhere.
 */
#ifndef DEPLOY_SCENE_H
#define DEPLOY_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#define SCENE_CLASSES 10

extern const char *const scene_class_names[SCENE_CLASSES];

/* Random numbers for one picture; also for choices outside it. */
struct scene_random {
    uint64_t state;
};
uint32_t scene_random_next(struct scene_random *random);
int scene_random_range(struct scene_random *random, int low, int high); /* inclusive */
float scene_random_unit(struct scene_random *random);                   /* [0, 1) */

/* width x height x 3 bytes, RGB, malloc'ed; NULL without memory. */
uint8_t *scene_draw(int scene_class, int width, int height, struct scene_random *random);

#endif
