/* SPDX-License-Identifier: Apache-2.0 */
#include "base/math.h"

#include <string.h>

/* ln 2 and pi, each as a head whose product with a small integer is exact, and the rest. */
static const double ln2_head = 0x1.62e42feep-1, ln2_tail = 0x1.a39ef35793c76p-33;
static const double pi_head = 0x1.921fb544p+1, pi_middle = 0x1.0b4611a6p-33, pi_tail = 0x1.3198a2e037073p-68;

static double power_of_two(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int64_t base_math_round(double x)
{
    int64_t whole = (int64_t)x;
    if (x < (double)whole)
        whole--;
    double rest = x - (double)whole;
    if (rest > 0.5 || (rest == 0.5 && (whole & 1)))
        whole++;
    return whole;
}

/* e^x = 2^k e^r with |r| <= ln 2 / 2, e^r by Taylor's series to r^15 / 15!. */
double base_math_exp(double x)
{
    int k = (int)base_math_round(x / 0x1.62e42fefa39efp-1);
    double r = (x - k * ln2_head) - k * ln2_tail;
    double sum = 0;
    for (int n = 15; n >= 2; n--)
        sum = (sum + 1) * r / n;
    return (1 + (r + r * sum)) * power_of_two(k);
}

/* ln(2^e m) = e ln 2 + 2 artanh(s), s = (m - 1) / (m + 1), sqrt(1/2) <= m < sqrt(2), by its series to s^25.
 */
double base_math_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0xfffffffffffff)) | UINT64_C(1023) << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 0x1.6a09e667f3bcdp+0) {
        m /= 2;
        e++;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int n = 25; n >= 3; n -= 2)
        sum = (sum + 1.0 / n) * square;
    return e * ln2_head + (2 * s + (2 * s * sum + e * ln2_tail));
}

/* sin(x) = +- sin(r), r = x - n pi, |r| <= pi / 2, by Taylor's series to r^23 / 23!. */
double base_math_sin(double x)
{
    int n = (int)base_math_round(x / 0x1.921fb54442d18p+1);
    double r = ((x - n * pi_head) - n * pi_middle) - n * pi_tail;
    double square = r * r, sum = 0;
    for (int k = 22; k >= 2; k -= 2)
        sum = (sum + 1) * (-square / (double)(k * (k + 1)));
    r += r * sum;
    return n & 1 ? -r : r;
}
