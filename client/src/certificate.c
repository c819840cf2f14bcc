/* SPDX-License-Identifier: Apache-2.0 */
#include "client/src/certificate.h"

#include "base/buffer.h"
#include "base/hash.h"

#include <string.h>

static void finish(struct client_certificates *certificates)
{
    if (certificates->finished_count == CLIENT_CERTIFICATES) {
        memmove(certificates->finished, certificates->finished + 1,
                (CLIENT_CERTIFICATES - 1) * sizeof *certificates->finished);
        certificates->finished_count--;
    }
    certificates->finished[certificates->finished_count++] = certificates->now;
    certificates->begun = false;
}

void client_certificates_add(struct client_certificates *certificates, const struct mr_batch *batch,
                             uint64_t step_begin, uint32_t rows)
{
    struct client_certificate *now = &certificates->now;
    uint8_t pair[16];
    if (!certificates->begun)
        *now = (struct client_certificate){
            .epoch = batch->epoch, .stream_epoch = batch->stream_epoch, .whole = step_begin == 0};
    certificates->begun = true;
    for (uint32_t i = 0; i < rows; i++) {
        base_set_u64(pair, batch->row[i].position);
        base_set_u64(pair + 8, batch->row[i].hash);
        now->hash += base_hash_xxh3(pair, sizeof pair);
    }
    now->positions += rows;
    if (batch->cursor.epoch != batch->stream_epoch)
        finish(certificates);
}
