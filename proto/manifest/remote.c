/* SPDX-License-Identifier: Apache-2.0 */
/* Pages got when they are needed, verified, and kept in a direct-mapped cache. */
#include "proto/manifest/pages.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT = 64 };

struct manifest_remote {
    struct manifest_pages pages;
    manifest_remote_fetch fetch;
    void *context;
    uint8_t version[BASE_SHA256_BYTES];
    bool known;                           /* the table is */
    struct base_buffer table, kept[KEPT]; /* page i in kept[i % KEPT] */
    uint64_t index[KEPT];
    bool here[KEPT];
};

static enum base_code fetch_page(struct manifest_remote *r, uint64_t index, struct base_error *error)
{
    struct base_buffer *page = &r->kept[index % KEPT];
    r->here[index % KEPT] = false;
    base_buffer_clear(page);
    enum base_code code = r->fetch(r->context, index, page, error);
    if (code != BASE_OK)
        return code;
    if (page->failed)
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for page %llu",
                              (unsigned long long)index);
    bool first = r->pages.head.pages == 0; /* the head itself is not known yet */
    if (!first && page->size != manifest_layout_page_bytes(&r->pages.head, index))
        return base_error_set(error, BASE_CORRUPT, "manifest: page %llu has %zu bytes",
                              (unsigned long long)index, page->size);
    code = manifest_pages_check(r->table.bytes, index, page->bytes, page->size, error);
    r->index[index % KEPT] = index;
    r->here[index % KEPT] = code == BASE_OK;
    return code;
}

static enum base_code get_page(void *context, uint64_t index, const uint8_t **bytes, struct base_error *error)
{
    struct manifest_remote *r = context;
    enum base_code code = BASE_OK;
    if (!r->here[index % KEPT] || r->index[index % KEPT] != index)
        code = fetch_page(r, index, error);
    *bytes = r->kept[index % KEPT].bytes;
    return code;
}

static enum base_code load_table(struct manifest_remote *r, struct base_error *error)
{
    base_buffer_clear(&r->table);
    enum base_code code = r->fetch(r->context, MANIFEST_PAGE_TABLE, &r->table, error);
    if (code != BASE_OK)
        return code;
    if (r->table.failed)
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory for its page table");
    code = manifest_pages_check_table(r->table.bytes, r->table.size, r->version, error);
    r->known = code == BASE_OK;
    return code;
}

/* What came stays when the rest does not: the next try goes on there. */
static enum base_code load_head(struct manifest_remote *r, struct base_error *error)
{
    const uint8_t *page;
    struct manifest_head head;
    if (r->pages.head.pages > 0)
        return BASE_OK;
    enum base_code code = r->known ? BASE_OK : load_table(r, error);
    if (code == BASE_OK)
        code = get_page(r, 0, &page, error);
    if (code == BASE_OK)
        code = manifest_layout_read(page, r->kept[0].size, &head, error);
    if (code != BASE_OK)
        return code;
    if (head.pages != r->table.size / BASE_SHA256_BYTES ||
        r->kept[0].size != manifest_layout_page_bytes(&head, 0))
        return base_error_set(error, BASE_CORRUPT, "manifest: its head and its page table disagree");
    r->pages.head = head;
    return BASE_OK;
}

enum base_code manifest_remote_create(struct manifest_remote **remote,
                                      const uint8_t version[BASE_SHA256_BYTES], manifest_remote_fetch fetch,
                                      void *context, struct base_error *error)
{
    struct manifest_remote *r = calloc(1, sizeof *r);
    if (!r)
        return base_error_set(error, BASE_NO_MEMORY, "manifest: no memory");
    memcpy(r->version, version, sizeof r->version);
    r->fetch = fetch;
    r->context = context;
    r->pages.get = get_page;
    r->pages.context = r;
    *remote = r;
    return BASE_OK;
}

void manifest_remote_destroy(struct manifest_remote **remote)
{
    struct manifest_remote *r = *remote;
    *remote = NULL;
    if (!r)
        return;
    base_buffer_fini(&r->table);
    for (int i = 0; i < KEPT; i++)
        base_buffer_fini(&r->kept[i]);
    free(r);
}

enum base_code manifest_remote_entry(struct manifest_remote *remote, uint64_t index,
                                     struct manifest_entry *entry, struct base_error *error)
{
    enum base_code code = load_head(remote, error);
    return code == BASE_OK ? manifest_pages_entry(&remote->pages, index, entry, error) : code;
}
