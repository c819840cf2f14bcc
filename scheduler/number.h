/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in canonical text, whatever the locale of the process. Pure. */
#ifndef SCHEDULER_NUMBER_H
#define SCHEDULER_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

#define SCHEDULER_NUMBER_CHARS 32 /* of a number's text, terminator included */

/* ['-'] digits ['.' digits] ['e' ['+'|'-'] digits], all of `text`; finite, and under SCHEDULER_NUMBER_CHARS long. */
bool scheduler_number_parse(const char *text, size_t size, double *value);

/* The shortest text that reads back as the same finite `value`: plain from 1e-5 to below 1e17, else with an exponent. */
void scheduler_number_print(double value, char text[SCHEDULER_NUMBER_CHARS]);

#endif
