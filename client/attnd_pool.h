/*
 * attnd_pool.h - pools: K and V of all layers, in pages. Part of attnd.h.
 */
#ifndef ATTND_POOL_H
#define ATTND_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session; /* attnd_session.h */

#define ATTND_DTYPE_FP16 1u
#define ATTND_DTYPE_BF16 2u
#define ATTND_DTYPE_FP8_E4M3 3u /* pools only; rows beside them are of 16 bits */
#define ATTND_DTYPE_FP8_E5M2 4u /* schemas/variant.h tells of scales and rounding */

/* One K or V plane of one layer: element [page, token, head, d], of 2 bytes, of fp8 1, lies that
 * many times page * stride_page + token * stride_token + head * stride_head + d behind
 * offset_bytes. Strides in elements, >= 0: NHD, HND, 5-D, split K and V are all strides. */
struct attnd_plane {
    uint32_t memory;
    uint64_t offset_bytes;
    int64_t stride_page, stride_token, stride_head;
};

enum attnd_page_owner {
    ATTND_PAGES_OF_SERVICE = 1, /* leased: attnd_pages_alloc() and its kin */
    ATTND_PAGES_OF_ENGINE = 2   /* the engine hands out ids 0..pages-1 itself */
};

struct attnd_pool_desc {
    uint32_t size;
    uint32_t layers, pages, page_size; /* 1..1024; 1..2^24; tokens a page, 1..2^20 */
    uint32_t heads_kv;                 /* 1..1024 */
    uint32_t dim_qk, dim_vo; /* 16, 32, .. 256, equal; 192, 128; 576, 512: V may lie in K's rows */
    uint32_t dtype;          /* of K and V: ATTND_DTYPE_* */
    uint32_t page_owner;
    const struct attnd_plane *k, *v; /* [layers] each, or both NULL: the service makes the memory,
                                        NHD: [layer][K, V][page][token][head][dim_qk] */
    uint32_t memory_kind; /* of memory the service makes: ATTND_MEMORY_*; 0: host. 0 with planes of
                             one's own */
};

/**
 * attnd_pool_create() - a pool of pages, in memory of one's own or in new memory of the service
 * @desc: borrowed for the call
 * New host memory is zeroed and mapped here (attnd_pool_info()), new device memory is neither.
 * Blocking: for new host memory as attnd_memory_create(). Return: 0 and *pool; -ATTND_E_RANGE (a
 * plane that leaves its memory, a size that overflows), -ATTND_E_UNKNOWN, -ATTND_E_UNSUPPORTED (a
 * head_dim or dtype that the worker has no variant for: limit is one that it has; a dim_vo that
 * does not go with dim_qk), -ATTND_E_NO_MEMORY (as there).
 */
int attnd_pool_create(struct attnd_session *session, const struct attnd_pool_desc *desc,
                      uint32_t *pool);

/**
 * attnd_pool_create_leased() - the usual pool: host memory of the service, pages by leases
 * The rest as in struct attnd_pool_desc. Return: as attnd_pool_create().
 */
int attnd_pool_create_leased(struct attnd_session *session, uint32_t layers, uint32_t pages,
                             uint32_t page_size, uint32_t heads_kv, uint32_t head_dim,
                             uint32_t dtype, uint32_t *pool);

/* A pool. The arrays are the session's; desc.k and desc.v are there for any memory. */
struct attnd_pool_info {
    uint32_t size;
    uint32_t memory; /* of a pool made by the service, as this session names it; 0 otherwise */
    void *address;   /* its mapping here, or NULL */
    uint64_t memory_bytes;
    uint32_t writable;
    struct attnd_pool_desc desc;
};

/** attnd_pool_info() - @info's desc.k and desc.v stay valid until the pool is released. */
int attnd_pool_info(struct attnd_session *session, uint32_t pool, struct attnd_pool_info *info);

#define ATTND_TOKEN_BYTES 16
struct attnd_token {
    uint8_t bytes[ATTND_TOKEN_BYTES];
};

/**
 * attnd_pool_share() - a token with which another session can attach the pool
 * @writable: 0 binds the operations of the other session to reading (append is refused); it does
 * not bind its mapping
 * The token is good for as long as the pool lives, for any number of sessions. Return: 0;
 * -ATTND_E_UNKNOWN; -ATTND_E_PERMISSION @writable, and this session may only read.
 */
int attnd_pool_share(struct attnd_session *session, uint32_t pool, int writable,
                     struct attnd_token *token);

/** attnd_pool_attach() - the pool lives until its creator and every attached session let it go.
 * Return: 0 and *pool, a handle of this session; -ATTND_E_UNKNOWN no pool has this token;
 * -ATTND_E_NO_MEMORY. */
int attnd_pool_attach(struct attnd_session *session, const struct attnd_token *token,
                      uint32_t *pool);

/** attnd_pool_release() - -ATTND_E_BUSY while a plan of this session uses it. Frees its leases. */
int attnd_pool_release(struct attnd_session *session, uint32_t pool);

#ifdef __cplusplus
}
#endif

#endif
