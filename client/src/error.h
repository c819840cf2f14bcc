/* SPDX-License-Identifier: Apache-2.0 */
/* From base's codes and errors to the public ones: the numbers are the same. */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include "base/error.h"
#include "client/include/millrace/millrace.h"

enum mr_code client_error_set(struct mr_error *error, enum base_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum mr_code client_error_pass(struct mr_error *error, enum base_code code, const struct base_error *from);

#endif
