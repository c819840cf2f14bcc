/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger's program: C99, nothing but the installed header and library. Asks a server that is not there. */
#include "millrace/millrace.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    struct mr_client_options where;
    struct mr_job_options what;
    struct mr_client *client = NULL;
    struct mr_job *job = NULL;
    struct mr_error error;
    enum mr_code code;
    memset(&where, 0, sizeof where);
    where.size = sizeof where;
    where.server = "127.0.0.1:1";
    memset(&what, 0, sizeof what);
    what.size = sizeof what;
    what.dataset = "photos";
    what.batch = 8;
    if (mr_client_open(&client, &where, &error) != MR_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    code = mr_job_open(&job, client, &what, 200, &error);
    printf("%s: %s: %s\n", mr_version(), mr_code_name(code), error.text);
    if (mr_client_close(&client) != MR_OK || client)
        return 1;
    return code == MR_TIMEOUT && strstr(error.text, "127.0.0.1:1") ? 0 : 1;
}
