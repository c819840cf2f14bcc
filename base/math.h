/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libm that draws and geometry need, made of + - * / alone (IEEE 754 double, no contraction), so that
 * no libm and no host changes a crop. Within 3 units in the last place of the true value for the arguments
 * stated.
 */
#ifndef BASE_MATH_H
#define BASE_MATH_H

#include <stdint.h>

double base_math_exp(double x);    /* -700 <= x <= 700 */
double base_math_log(double x);    /* normal and positive */
double base_math_sin(double x);    /* -100 <= x <= 100 */
int64_t base_math_round(double x); /* half to even, as Python's round; |x| < 2^52 */

#endif
