/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 17, EXPONENT_DIGITS_MAX = 4 };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies digits of `text` from *at on to `out`; returns how many. */
static size_t take_digits(const char *text, size_t size, size_t *at, char *out)
{
    size_t count = 0;
    while (*at < size && is_digit(text[*at]))
        out[count++] = text[(*at)++];
    return count;
}

/* 'e' ['+'|'-'] digits, at the end of the text. */
static bool take_exponent(const char *text, size_t size, size_t *at, int *exponent)
{
    char digits[SCHEDULER_NUMBER_CHARS] = "";
    bool negative = false;
    ++*at;
    if (*at < size && (text[*at] == '+' || text[*at] == '-'))
        negative = text[(*at)++] == '-';
    size_t count = take_digits(text, size, at, digits);
    if (count < 1 || count > EXPONENT_DIGITS_MAX)
        return false;
    *exponent += negative ? -atoi(digits) : atoi(digits);
    return true;
}

/* strtod reads the locale's decimal point, so it is given none: "0.225" goes in as "0225e-3". */
bool scheduler_number_parse(const char *text, size_t size, double *value)
{
    char plain[2 * SCHEDULER_NUMBER_CHARS];
    size_t at = 0, used = 0;
    int exponent = 0;
    if (size == 0 || size >= SCHEDULER_NUMBER_CHARS)
        return false;
    if (text[at] == '-')
        plain[used++] = text[at++];
    size_t whole = take_digits(text, size, &at, plain + used);
    used += whole;
    if (whole == 0)
        return false;
    if (at < size && text[at] == '.') {
        at++;
        size_t fraction = take_digits(text, size, &at, plain + used);
        if (fraction == 0)
            return false;
        used += fraction;
        exponent = -(int)fraction;
    }
    if (at < size && text[at] == 'e' && !take_exponent(text, size, &at, &exponent))
        return false;
    if (at != size)
        return false;
    snprintf(plain + used, sizeof plain - used, "e%d", exponent);
    *value = strtod(plain, NULL);
    return isfinite(*value);
}

/* value = 0.DIGITS x 10^point, DIGITS without zeros at the end. */
static void print_digits(const char *digits, int count, int point, char *text)
{
    char *at = text;
    if (point > 17 || point < -4) {
        *at++ = digits[0];
        if (count > 1) {
            *at++ = '.';
            memcpy(at, digits + 1, (size_t)count - 1);
            at += count - 1;
        }
        sprintf(at, "e%d", point - 1);
        return;
    }
    if (point <= 0) {
        memcpy(at, "0.", 2);
        memset(at + 2, '0', (size_t)-point);
        at += 2 - point;
        memcpy(at, digits, (size_t)count);
        at[count] = 0;
        return;
    }
    for (int i = 0; i < point || i < count; i++) {
        if (i == point)
            *at++ = '.';
        *at++ = i < count ? digits[i] : '0';
    }
    *at = 0;
}

void scheduler_number_print(double value, char text[SCHEDULER_NUMBER_CHARS])
{
    char scientific[64], digits[DIGITS_MAX + 1] = "";
    if (value == 0) {
        strcpy(text, "0");
        return;
    }
    for (int precision = 1; precision <= DIGITS_MAX; precision++) {
        int count = 0;
        double back = 0;
        snprintf(scientific, sizeof scientific, "%.*e", precision - 1, fabs(value));
        const char *mark = strchr(scientific, 'e');
        for (const char *c = scientific; c < mark; c++) /* whatever point the locale has is passed over */
            if (is_digit(*c))
                digits[count++] = *c;
        int point = atoi(mark + 1) + 1;
        while (count > 1 && digits[count - 1] == '0')
            count--;
        text[0] = '-';
        print_digits(digits, count, point, text + 1);
        if (scheduler_number_parse(text + 1, strlen(text + 1), &back) && back == fabs(value))
            break;
    }
    if (value > 0)
        memmove(text, text + 1, strlen(text));
}
