/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for the store of tests that open it over and over: in memory where that can be had, as SQLite syncs a lot. */
#ifndef TESTS_UNIT_SERVER_STORE_FOLDER_H
#define TESTS_UNIT_SERVER_STORE_FOLDER_H

extern char store_folder[64];

/* For cmocka_run_group_tests. */
int store_folder_make(void **state);
int store_folder_remove(void **state);
/* The store's files go, the folder stays. */
void store_folder_clear(void);

#endif
