/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epoch certificates: what all ranks of a job together were handed of an epoch, one hash. Jobs of one stream must agree: two that
 * do not are an error, logged and counted. Loop thread only.
 */
#ifndef SERVER_CERTIFICATES_H
#define SERVER_CERTIFICATES_H

#include "server/server.h"

/* Takes the epochs that a rank says it has finished. The sync is of the rank's current start. */
void server_certificates_report(struct server *server, struct server_job *job,
                                const Millrace__V1__JobSync *sync);

#endif
