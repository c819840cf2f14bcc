/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/server/store_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char store_folder[64];

int store_folder_make(void **state)
{
    (void)state;
    const char *where = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(store_folder, sizeof store_folder, "%s/millrace-inject-store-XXXXXX", where);
    return mkdtemp(store_folder) ? 0 : -1;
}

void store_folder_clear(void)
{
    static const char *const names[] = {"server.db", "server.db-wal", "server.db-shm", "server.db-journal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", store_folder, names[i]);
        unlink(path);
    }
}

int store_folder_remove(void **state)
{
    (void)state;
    store_folder_clear();
    return rmdir(store_folder);
}
