/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that is hashed (SHA-256), fixed for ever:
 *   millrace stream 1\n
 *   dataset HEX(version)\n
 *   items N\n
 *   sampler shuffle|sequential\n
 *   seed N\n                        0 when nothing uses it
 *   fingerprint HEX\n
 *   sample: ...\n                   the canonical sample section
 * The family's (SHA-256), fixed as well; siblings differ in sample ops (and so in fingerprint) only:
 *   millrace family 1\n
 *   dataset, items, sampler, seed   the same four lines
 * The default seed: the first 8 bytes, little endian, of SHA-256("millrace seed 1\n" + the version's 32
 * bytes).
 */
#include "scheduler/stream.h"

#include "scheduler/order.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char seed_prefix[] = "millrace seed 1\n";

uint64_t scheduler_stream_default_seed(const uint8_t dataset_version[BASE_SHA256_BYTES])
{
    uint8_t text[sizeof seed_prefix - 1 + BASE_SHA256_BYTES], hash[BASE_SHA256_BYTES];
    uint64_t seed = 0;
    memcpy(text, seed_prefix, sizeof seed_prefix - 1);
    memcpy(text + sizeof seed_prefix - 1, dataset_version, BASE_SHA256_BYTES);
    base_hash_sha256(text, sizeof text, hash);
    for (int i = 7; i >= 0; i--)
        seed = seed << 8 | hash[i];
    return seed;
}

static void hash_stream(struct scheduler_stream *stream)
{
    static const char head[] = "millrace stream 1\n", family_head[] = "millrace family 1\n";
    char version[2 * BASE_SHA256_BYTES + 1], fingerprint[2 * sizeof stream->fingerprint + 1];
    char text[sizeof stream->sample_text + 512];
    _Static_assert(sizeof head == sizeof family_head, "the heads change places");
    base_hash_to_hex(stream->dataset_version, sizeof stream->dataset_version, version);
    base_hash_to_hex(stream->fingerprint, sizeof stream->fingerprint, fingerprint);
    int size = snprintf(text, sizeof text, "%sdataset %s\nitems %" PRIu64 "\nsampler %s\nseed %" PRIu64 "\n",
                        family_head, version, stream->items, stream->shuffle ? "shuffle" : "sequential",
                        stream->seed);
    base_hash_sha256(text, (size_t)size, stream->family);
    memcpy(text, head, sizeof head - 1);
    size += snprintf(text + size, sizeof text - (size_t)size, "fingerprint %s\n%s\n", fingerprint,
                     stream->sample_text);
    base_hash_sha256(text, (size_t)size, stream->hash);
}

static enum base_code check_text(struct scheduler_stream *stream, struct base_error *error)
{
    char canonical[SCHEDULER_PIPELINE_TEXT_BYTES];
    if (!memchr(stream->sample_text, 0, sizeof stream->sample_text))
        return base_error_set(error, BASE_TOO_LARGE, "stream: the sample section is over %d bytes",
                              SCHEDULER_PIPELINE_TEXT_BYTES - 1);
    enum base_code code = scheduler_pipeline_parse(stream->sample_text, NULL, 0, &stream->pipeline, error);
    if (!code)
        code = scheduler_pipeline_print(&stream->pipeline, "sample", canonical, sizeof canonical, error);
    if (code)
        return base_error_prefix(error, code, "stream");
    if (strcmp(canonical, stream->sample_text) != 0)
        return base_error_set(error, BASE_INVALID,
                              "stream: the sample section is not canonical, it must read '%.300s'",
                              canonical);
    return BASE_OK;
}

enum base_code scheduler_stream_seal(struct scheduler_stream *stream, struct base_error *error)
{
    if (stream->items < 1 || stream->items > SCHEDULER_ORDER_ITEMS_MAX)
        return base_error_set(error, BASE_INVALID, "stream: %" PRIu64 " items, must be 1 to 2^48",
                              stream->items);
    enum base_code code = check_text(stream, error);
    if (code)
        return code;
    stream->uses_epoch = stream->shuffle || stream->pipeline.uses_randomness;
    if (!stream->uses_epoch)
        stream->seed = 0;
    hash_stream(stream);
    return BASE_OK;
}

uint64_t scheduler_stream_blocks(const struct scheduler_stream *stream)
{
    uint64_t rows = stream->pipeline.block_rows;
    return stream->items / rows + (stream->items % rows != 0);
}

uint32_t scheduler_stream_block_rows(const struct scheduler_stream *stream, uint64_t block)
{
    uint64_t rows = stream->pipeline.block_rows, blocks = scheduler_stream_blocks(stream);
    if (block >= blocks)
        return 0;
    return (uint32_t)(block + 1 < blocks ? rows : stream->items - block * rows);
}
