/*
 * attnd_merge.h - two results of the same queries over different keys become one.
 *
 * An engine that has attended to its keys in parts, by this service or by anything else, merges the
 * parts' o and lse two at a time. The order is the engine's, so the result is the same each time.
 */
#ifndef ATTND_MERGE_H
#define ATTND_MERGE_H

#include "attnd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o of all: [rows, heads_q, head_dim_vo] in the plan's dtype. lse of all: float [rows, heads_q], in
 * base 2, or e with ATTND_LSE_LN. Rows and heads are as far apart as the plan's batch says of o and
 * lse. */
struct attnd_merge_args {
    uint32_t size;
    uint32_t reserved0;                         /* 0 */
    struct attnd_tensor o_a, lse_a, o_b, lse_b; /* read */
    struct attnd_tensor o;                      /* written; may be o_a or o_b */
    struct attnd_tensor lse;                    /* the same of lse_a, lse_b; memory 0: not wanted */
};

/**
 * attnd_merge_state() - merge two results by their lse
 * @plan: a batch is set on it, whose rows, heads, types and strides of o and lse these are. It
 *        need be none of those that were run.
 * @args: copied before the call returns
 * With w = 2^lse (or e^lse): o = (w_a o_a + w_b o_b) / (w_a + w_b), lse = log(w_a + w_b), in fp32.
 * Where a row of one saw nothing, its lse being -inf, the other's o and lse are copied, whatever
 * its own o is; where both did, o is 0 and lse -inf. Beside any other lse, one that is NaN or +inf
 * makes a row of NaN. Attention sinks (variant.h) are of one part only: each part that has them
 * counts them, also where it saw no key, its lse being the sink then.
 * An operation as attnd_run() is: in its lane's order, with the same faults, which name o_a, lse_a,
 * o_b, lse_b, o and lse. -ATTND_E_OVERLAP: an output lies in part of an input, of the other output
 * or of anybody's pool. Memory and threads as attnd_run(). Return: as attnd_plan_set().
 */
int attnd_merge_state(struct attnd_session *session, uint32_t plan,
                      const struct attnd_merge_args *args, const struct attnd_op *op);

#ifdef __cplusplus
}
#endif
#endif
