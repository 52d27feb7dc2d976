/*
 * errors.h - the one error convention of attnd.
 *
 * Functions return 0 (or a documented non-negative count) on success and -ATTND_E_* on failure. A
 * completion carries the same code. Where a caller can be told more, a struct attnd_fault names the
 * field, the index in it, the value found and the limit it broke, all as numbers;
 * attnd_fault_string() makes the sentence. The numbers are part of the ABI: append, never renumber.
 */
#ifndef ATTND_SCHEMAS_ERRORS_H
#define ATTND_SCHEMAS_ERRORS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, number, sentence) */
#define ATTND_ERRORS(X)                                                                            \
    X(INVALID, 1, "a value is not allowed here")                                                   \
    X(RANGE, 2, "a value is outside its limits")                                                   \
    X(OVERLAP, 3, "an output overlaps an input, another output or a pool")                         \
    X(UNKNOWN, 4, "the object named does not exist in this session")                               \
    X(BUSY, 5, "the object is in use by a plan, a pool or operations in flight")                   \
    X(FULL, 6, "the queue is full; wait for completions and repeat")                               \
    X(NO_MEMORY, 7, "a memory budget is used up")                                                  \
    X(NO_SPACE, 8, "a capacity given at creation is too small")                                    \
    X(PERMISSION, 9, "the session has no right to do this")                                        \
    X(UNSUPPORTED, 10, "the backend or this build does not have this")                             \
    X(VERSION, 11, "the two sides speak different protocol versions")                              \
    X(PROTOCOL, 12, "the peer broke the protocol")                                                 \
    X(DISCONNECTED, 13, "the service is gone, or has ended the session")                           \
    X(WORKER_RESTARTED, 14, "the worker was restarted; run the operation again")                   \
    X(CANCELLED, 15, "the operation was cancelled")                                                \
    X(TIMEOUT, 16, "the deadline passed")                                                          \
    X(SHARED_PAGE, 17, "the page is shared and may not be written")                                \
    X(NOT_LEASED, 18, "the session holds no lease of the page")                                    \
    X(EXPIRED, 19, "the ticket expired or was already claimed")                                    \
    X(FORKED, 20, "the session belongs to the parent process")                                     \
    X(SYSTEM, 21, "a system call failed; value is errno")                                          \
    X(DEVICE, 22, "the GPU or its driver refused")                                                 \
    X(PEER_LOST, 23, "the service that has the pages is gone, or does not answer")

/* X(NAME, number, the name as the public API or the batch spells it) */
#define ATTND_FIELDS(X)                                                                            \
    X(NONE, 0, "")                                                                                 \
    X(SIZE, 1, "size")                                                                             \
    X(REQUESTS, 2, "requests")                                                                     \
    X(ROWS, 3, "rows")                                                                             \
    X(LEVELS, 4, "levels")                                                                         \
    X(PAGES, 5, "pages")                                                                           \
    X(HEADS_Q, 6, "heads_q")                                                                       \
    X(HEADS_KV, 7, "heads_kv")                                                                     \
    X(HEAD_DIM, 8, "head_dim")                                                                     \
    X(DTYPE, 9, "dtype")                                                                           \
    X(FLAGS, 10, "flags")                                                                          \
    X(PAGE_SIZE, 11, "page_size")                                                                  \
    X(LAYER, 12, "layer")                                                                          \
    X(LANE, 13, "lane")                                                                            \
    X(PLAN, 14, "plan")                                                                            \
    X(POOL, 15, "pool")                                                                            \
    X(MEMORY, 16, "memory")                                                                        \
    X(QO_INDPTR, 17, "qo_indptr")                                                                  \
    X(KV_INDPTR, 18, "kv_indptr")                                                                  \
    X(KV_INDICES, 19, "kv_indices")                                                                \
    X(KV_LAST_PAGE_LEN, 20, "kv_last_page_len")                                                    \
    X(KV_LEN, 21, "kv_len")                                                                        \
    X(RESERVE_PAGES, 22, "reserve_pages")                                                          \
    X(Q, 23, "q")                                                                                  \
    X(O, 24, "o")                                                                                  \
    X(LSE, 25, "lse")                                                                              \
    X(K, 26, "k")                                                                                  \
    X(V, 27, "v")                                                                                  \
    X(OFFSET, 28, "offset_bytes")                                                                  \
    X(STRIDE, 29, "stride")                                                                        \
    X(SM_SCALE, 30, "sm_scale")                                                                    \
    X(OPCODE, 31, "opcode")                                                                        \
    X(ARENA, 32, "arena")                                                                          \
    X(HEADER, 33, "header")                                                                        \
    X(TOKEN, 34, "token")                                                                          \
    X(TICKET, 35, "ticket")                                                                        \
    X(COUNT, 36, "count")                                                                          \
    X(PARTIALS, 37, "partials")                                                                    \
    X(TIMEOUT, 38, "timeout_us")                                                                   \
    X(RESERVED, 39, "reserved")                                                                    \
    X(SESSIONS, 40, "sessions")                                                                    \
    X(SOCKET, 41, "socket")                                                                        \
    X(VERSION, 42, "version")                                                                      \
    X(SEALS, 43, "seals")                                                                          \
    X(RING_ENTRIES, 44, "ring_entries")                                                            \
    X(LAYERS, 45, "layers")                                                                        \
    X(GENERATION, 46, "generation")                                                                \
    X(USER_DATA, 47, "user_data")                                                                  \
    X(PAGE_OWNER, 48, "page_owner")                                                                \
    X(EXPIRE_MS, 49, "expire_ms")                                                                  \
    X(MEMORY_KIND, 50, "memory_kind")                                                              \
    X(MAILBOX, 51, "mailbox")                                                                      \
    X(PREPARED, 52, "prepared")                                                                    \
    X(BACKEND, 53, "backend")                                                                      \
    X(ITEMS, 54, "items")                                                                          \
    X(DEVICE, 55, "device")                                                                        \
    X(DAEMON_UID, 56, "daemon_uid")                                                                \
    X(SESSION, 57, "session")                                                                      \
    X(WEIGHT, 58, "weight")                                                                        \
    X(PREFIX, 59, "prefix")                                                                        \
    X(KEYS, 60, "keys")                                                                            \
    X(PARENT, 61, "parent")                                                                        \
    X(BLOCKS, 62, "blocks")                                                                        \
    X(BLOCK_PAGES, 63, "block_pages")                                                              \
    X(PAGES_MAX, 64, "pages_max")                                                                  \
    X(HEAP, 65, "heap")                                                                            \
    X(DAEMON_MEMORY, 66, "daemon_memory")                                                          \
    X(VARIANT, 67, "variant")                                                                      \
    X(WINDOW_LEFT, 68, "window_left")                                                              \
    X(LOGITS_SOFT_CAP, 69, "logits_soft_cap")                                                      \
    X(POSITION_ENCODING, 70, "position_encoding")                                                  \
    X(ROPE_THETA, 71, "rope_theta")                                                                \
    X(ROPE_SCALE, 72, "rope_scale")                                                                \
    X(ROPE_LOW_FREQ_FACTOR, 73, "rope_low_freq_factor")                                            \
    X(ROPE_HIGH_FREQ_FACTOR, 74, "rope_high_freq_factor")                                          \
    X(ROPE_OLD_CONTEXT, 75, "rope_old_context")                                                    \
    X(ROPE_DIM, 76, "rope_dim")                                                                    \
    X(Q_SCALE, 77, "q_scale")                                                                      \
    X(K_SCALE, 78, "k_scale")                                                                      \
    X(V_SCALE, 79, "v_scale")                                                                      \
    X(FIXED_SPLIT, 80, "fixed_split")                                                              \
    X(SINKS, 81, "sinks")                                                                          \
    X(MASK, 82, "mask")                                                                            \
    X(MASK_INDPTR, 83, "mask_indptr")                                                              \
    X(KV_SCALES, 84, "kv_scales")                                                                  \
    X(O_A, 85, "o_a")                                                                              \
    X(LSE_A, 86, "lse_a")                                                                          \
    X(O_B, 87, "o_b")                                                                              \
    X(LSE_B, 88, "lse_b")                                                                          \
    X(KERNEL, 89, "kernel")                                                                        \
    X(ARGS, 90, "args")                                                                            \
    X(COMPLETIONS, 91, "completions")                                                              \
    X(DIM_VO, 92, "dim_vo")                                                                        \
    X(EXECUTOR, 93, "executor")                                                                    \
    X(ALIBI_SLOPES, 94, "alibi_slopes")                                                            \
    X(CHUNK, 95, "chunk")                                                                          \
    X(PEER, 96, "peer")

enum attnd_error {
    ATTND_OK = 0,
#define X(name, number, sentence) ATTND_E_##name = number,
    ATTND_ERRORS(X)
#undef X
        ATTND_ERRORS_END /* one more than the last */
};

enum attnd_field {
#define X(name, number, spelling) ATTND_F_##name = number,
    ATTND_FIELDS(X)
#undef X
};

/* A failure in numbers. `code` is negative like a return value; index is the element of an array
 * field (0 for scalars). Value and limit of sm_scale and of a variant's floats are their 32 bits.
 * Of an option of a variant that is UNSUPPORTED, index is the field that it does not go with, or
 * ATTND_F_BACKEND. Of ATTND_F_KERNEL, value is the number of one that the worker was built without
 * (schemas/kernels.h). Zero-initialise before passing it down. */
struct attnd_fault {
    int32_t code;
    uint32_t field;
    uint64_t index;
    int64_t value;
    int64_t limit;
};

/**
 * attnd_fault_set() - fill a fault and hand back its code
 * @fault: may be NULL
 *
 * Return: @code, so that a check reads `return attnd_fault_set(fault, -ATTND_E_RANGE, ...);`
 */
int attnd_fault_set(struct attnd_fault *fault, int code, enum attnd_field field, uint64_t index,
                    int64_t value, int64_t limit);

/**
 * attnd_error_name() - the symbol of a code ("ATTND_E_RANGE"), "ATTND_OK", or "ATTND_E_?"
 * @code: negative or positive; static storage, never NULL.
 */
const char *attnd_error_name(int code);

/** attnd_error_text() - one English clause for a code; static storage, never NULL. */
const char *attnd_error_text(int code);

/** attnd_field_name() - the field as the API spells it; "" for NONE; static storage. */
const char *attnd_field_name(uint32_t field);

/**
 * attnd_fault_string() - a sentence with field, index, value and limit
 * @fault:    what to describe
 * @text:     receives at most @text_bytes, always terminated when text_bytes > 0
 *
 * A code that is about a state (UNKNOWN, BUSY, NOT_LEASED, ...) has no limit, and none is named. An
 * INVALID value of 0 whose limit is 0 is a pointer that is missing.
 *
 * Return: @text. Threads: any. Example: "ATTND_E_RANGE: kv_indices[7] is 4096, limit 1023 (a value
 * is outside its limits)".
 */
char *attnd_fault_string(const struct attnd_fault *fault, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
