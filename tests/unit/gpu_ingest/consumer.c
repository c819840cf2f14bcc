/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger's program: the installed headers alone. */
#include "millrace/ingest.h"

#include <stdio.h>

int main(void)
{
    struct mr_device_options options = {0};
    struct mr_device *device = NULL;
    struct mr_error error;
    options.size = sizeof options;
    if (mr_device_open(&device, &options, &error) != MR_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("%s\n", mr_device_name(device));
    return mr_device_close(&device) == MR_OK ? 0 : 1;
}
