/*
 * prefix.c - namespaces by call, operations on them by submission.
 *
 * An operation is one block of the arena: the parent's key if there is one, the keys, and the pages
 * of a publish. The pages of a match come back beside its completion (wait.c). The completion's
 * numbers say how far an operation went, and attnd_prefix_result() takes them apart.
 */
#include "client/siphash.h"
#include "client/submit.h"

#include <stdlib.h>
#include <string.h>

/* The public struct is the one on the wire, and its numbers are the wire's. */
_Static_assert(sizeof(struct attnd_prefix_key) == sizeof(struct attnd_block_key), "a key is a key");
_Static_assert(ATTND_PREFIX_MATCH_WAITS == ATTND_PREFIX_WAIT, "the flag is the slot's");
_Static_assert((int)ATTND_PREFIX_ABANDONED == (int)ATTND_PREFIX_STOP_ABANDONED, "ends are stops");
_Static_assert((int)ATTND_MATCH == (int)ATTND_OP_PREFIX_MATCH, "operations are opcodes");
_Static_assert((int)ATTND_UNPIN == (int)ATTND_OP_PREFIX_UNPIN, "to the last");

/* ---- namespaces ---- */

static int keep_prefix(struct attnd_session *session, const Attnd__PrefixReply *reply,
                       struct attnd_object *object)
{
    if (reply->salt.len != ATTND_PREFIX_SALT_BYTES || reply->block_pages == 0 ||
        reply->block_pages > ATTND_PREFIX_BLOCK_PAGES_MAX)
        return -ATTND_E_PROTOCOL;
    object->kind = ATTND_OBJECT_PREFIX;
    object->handle = reply->prefix;
    object->u.prefix = (struct attnd_prefix_info){.size = sizeof(object->u.prefix),
                                                  .pool = reply->pool,
                                                  .block_pages = reply->block_pages,
                                                  .pages_max = reply->pages_max,
                                                  .writable = reply->writable != 0};
    memcpy(object->u.prefix.salt, reply->salt.data, ATTND_PREFIX_SALT_BYTES);
    attnd_object_add(session, object);
    return 0;
}

static int call_prefix(struct attnd_session *session, struct attnd_rpc *call, uint32_t *prefix)
{
    struct attnd_object *object = prefix ? calloc(1, sizeof(*object)) : NULL;
    if (object == NULL)
        return attnd_fault_raise(prefix ? -ATTND_E_NO_MEMORY : -ATTND_E_INVALID, ATTND_F_PREFIX, 0,
                                 0, 0);
    int rc = attnd_call(session, call, ATTND__REPLY__RESULT_PREFIX);
    if (rc < 0) {
        free(object);
        return rc;
    }
    if (keep_prefix(session, call->reply->prefix, object) < 0) {
        free(object);
        return attnd_call_broken(session, call);
    }
    *prefix = object->handle;
    attnd_call_end(session, call);
    return 0;
}

int attnd_prefix_open(struct attnd_session *session, uint32_t pool,
                      const struct attnd_prefix_desc *desc, uint32_t *prefix)
{
    struct attnd_prefix_desc own;
    int rc = attnd_args_take(&own, sizeof(own), desc);
    if (rc < 0)
        return rc;
    Attnd__PrefixOpen message = ATTND__PREFIX_OPEN__INIT;
    message.pool = pool;
    message.block_pages = own.block_pages;
    message.has_pages_max = own.pages_max != 0;
    message.pages_max = own.pages_max;
    message.has_pages_low = own.pages_low != 0;
    message.pages_low = own.pages_low;
    message.has_compute_us = own.block_compute_us != 0;
    message.compute_us = own.block_compute_us;
    struct attnd_rpc call = ATTND_CALL(PREFIX_OPEN, .prefix_open = &message);
    return call_prefix(session, &call, prefix);
}

int attnd_prefix_attach(struct attnd_session *session, const struct attnd_token *token,
                        uint32_t *prefix)
{
    if (token == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TOKEN, 0, 0, 0);
    struct attnd_token own = *token;
    Attnd__PrefixAttach message = ATTND__PREFIX_ATTACH__INIT;
    message.token = (ProtobufCBinaryData){.len = ATTND_TOKEN_BYTES, .data = own.bytes};
    struct attnd_rpc call = ATTND_CALL(PREFIX_ATTACH, .prefix_attach = &message);
    return call_prefix(session, &call, prefix);
}

int attnd_prefix_share(struct attnd_session *session, uint32_t prefix, int writable,
                       struct attnd_token *token)
{
    if (token == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_TOKEN, 0, 0, 0);
    Attnd__PrefixShare message = ATTND__PREFIX_SHARE__INIT;
    message.prefix = prefix;
    message.writable = writable != 0;
    struct attnd_rpc call = ATTND_CALL(PREFIX_SHARE, .prefix_share = &message);
    return attnd_call_secret(session, &call, ATTND__REPLY__RESULT_TOKEN, token);
}

int attnd_prefix_release(struct attnd_session *session, uint32_t prefix)
{
    Attnd__PrefixRelease message = ATTND__PREFIX_RELEASE__INIT;
    message.prefix = prefix;
    struct attnd_rpc call = ATTND_CALL(PREFIX_RELEASE, .prefix_release = &message);
    return attnd_object_release(session, &call, ATTND_OBJECT_PREFIX, prefix);
}

int attnd_prefix_info(struct attnd_session *session, uint32_t prefix,
                      struct attnd_prefix_info *info)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_PREFIX, prefix);
    rc = object ? attnd_args_give(info, &object->u.prefix, sizeof(object->u.prefix))
                : attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREFIX, 0, prefix, 0);
    pthread_mutex_unlock(&session->objects_lock);
    return rc;
}

/* ---- keys ---- */

void attnd_prefix_key(const uint8_t salt[ATTND_PREFIX_SALT_BYTES],
                      const struct attnd_prefix_key *parent, const void *content, size_t bytes,
                      struct attnd_prefix_key *key)
{
    const uint64_t none[2] = {0, 0};
    struct attnd_siphash hash;

    attnd_siphash_begin(&hash, salt);
    attnd_siphash_feed(&hash, parent ? parent->word : none, sizeof(none));
    attnd_siphash_feed(&hash, content, bytes);
    attnd_siphash_end(&hash, key->word);
}

/* ---- operations ---- */

/* Return: of the namespace; 0 with a fault. */
static uint32_t block_pages_of(struct attnd_session *session, uint32_t prefix)
{
    pthread_mutex_lock(&session->objects_lock);
    const struct attnd_object *object = attnd_object_find(session, ATTND_OBJECT_PREFIX, prefix);
    uint32_t block_pages = object ? object->u.prefix.block_pages : 0;
    pthread_mutex_unlock(&session->objects_lock);
    if (block_pages == 0)
        attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREFIX, 0, prefix, 0);
    return block_pages;
}

static int brings_pages(uint8_t opcode)
{
    return opcode == ATTND_OP_PREFIX_MATCH || opcode == ATTND_OP_PREFIX_PUBLISH;
}

static int fill_slot(struct attnd_session *session, const struct attnd_prefix_args *args,
                     const struct attnd_op *op, struct attnd_sqe *sqe)
{
    uint32_t block_pages = block_pages_of(session, args->prefix);
    if (block_pages == 0)
        return -ATTND_E_UNKNOWN;
    if (args->keys == NULL && args->blocks > 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_KEYS, 0, 0, 0);
    int pages = brings_pages(sqe->opcode);
    uint32_t blocks_max = ATTND_PREFIX_BLOCKS_MAX;
    if (pages && blocks_max > ATTND_PREFIX_PAGES_MAX / block_pages)
        blocks_max = ATTND_PREFIX_PAGES_MAX / block_pages;
    if (args->blocks > blocks_max)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_BLOCKS, 0, args->blocks, blocks_max);
    sqe->plan = args->prefix;
    sqe->u.prefix = (struct attnd_sqe_prefix){
        .blocks = args->blocks,
        .pages = pages ? args->blocks * block_pages : 0,
        .flags = args->flags | (args->parent ? ATTND_PREFIX_PARENT : 0),
        .timeout_us = op && sqe->opcode == ATTND_OP_PREFIX_MATCH ? op->timeout_us : 0};
    return 0;
}

static void put(uint8_t **to, const void *from, size_t bytes)
{
    if (bytes > 0)
        memcpy(*to, from, bytes);
    *to += bytes;
}

/* @pages: of a publish, else NULL. */
static int submit(struct attnd_session *session, uint8_t opcode,
                  const struct attnd_prefix_args *args, const int32_t *pages,
                  const struct attnd_op *op)
{
    struct attnd_sqe sqe = {0};
    struct attnd_prefix_args own = {0};
    uint64_t offset_bytes;
    int rc = attnd_submit_begin(session, 0, opcode, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc == 0)
        rc = fill_slot(session, &own, op, &sqe);
    if (rc < 0)
        return rc;
    size_t parent_bytes = own.parent ? sizeof(*own.parent) : 0;
    size_t keys_bytes = own.blocks * sizeof(*own.keys);
    size_t pages_bytes = pages ? sqe.u.prefix.pages * sizeof(*pages) : 0;
    rc = attnd_submit_reserve(session, parent_bytes + keys_bytes + pages_bytes, &offset_bytes);
    if (rc < 0)
        return rc;
    uint8_t *to = session->arena.base + offset_bytes;
    put(&to, own.parent, parent_bytes);
    put(&to, own.keys, keys_bytes);
    put(&to, pages, pages_bytes);
    sqe.u.prefix.arrays_offset_bytes = offset_bytes;
    return attnd_submit_push_block(session, &sqe, parent_bytes + keys_bytes + pages_bytes);
}

int attnd_prefix_match(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op)
{
    return submit(session, ATTND_OP_PREFIX_MATCH, args, NULL, op);
}

int attnd_prefix_publish(struct attnd_session *session, const struct attnd_prefix_args *args,
                         const int32_t *pages, const struct attnd_op *op)
{
    if (pages == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_PAGES, 0, 0, 0);
    return submit(session, ATTND_OP_PREFIX_PUBLISH, args, pages, op);
}

int attnd_prefix_claim(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op)
{
    return submit(session, ATTND_OP_PREFIX_CLAIM, args, NULL, op);
}

int attnd_prefix_abandon(struct attnd_session *session, const struct attnd_prefix_args *args,
                         const struct attnd_op *op)
{
    return submit(session, ATTND_OP_PREFIX_ABANDON, args, NULL, op);
}

int attnd_prefix_pin(struct attnd_session *session, const struct attnd_prefix_args *args,
                     const struct attnd_op *op)
{
    return submit(session, ATTND_OP_PREFIX_PIN, args, NULL, op);
}

int attnd_prefix_unpin(struct attnd_session *session, const struct attnd_prefix_args *args,
                       const struct attnd_op *op)
{
    return submit(session, ATTND_OP_PREFIX_UNPIN, args, NULL, op);
}

int attnd_prefix_result(struct attnd_session *session, const struct attnd_completion *completion,
                        struct attnd_prefix_result *result)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    if (completion == NULL || completion->operation < ATTND_MATCH ||
        completion->operation > ATTND_UNPIN || completion->fault.code != 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_NONE, 0, 0, 0);
    struct attnd_prefix_result own = {.size = sizeof(own),
                                      .blocks = (uint32_t)completion->fault.index,
                                      .end = (uint32_t)(completion->fault.index >> 32)};
    uint64_t limit = (uint64_t)completion->fault.limit;
    if (completion->operation == ATTND_PUBLISH)
        own.taken = (uint32_t)completion->fault.value;
    if (completion->operation == ATTND_MATCH) {
        own.foreign = (uint32_t)completion->fault.value;
        own.pages_count = (uint32_t)(limit >> 32);
        if (own.pages_count > 0)
            own.pages = session->results + (uint32_t)limit;
    }
    return attnd_args_give(result, &own, sizeof(own));
}
