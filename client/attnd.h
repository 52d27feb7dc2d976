/*
 * attnd.h - the attention service, as an engine sees it.
 *
 * An engine opens a session, shares KV pools with the service, plans a batch once, and runs the
 * plan layer after layer. Plans, advances, appends and runs are submitted over shared memory and
 * complete asynchronously; everything else is a call that returns when it is done.
 *
 *   attnd_session.h    a session: opened, asked about, slept on, closed
 *   attnd_memory.h     buffers that runs name and pools lie in
 *   attnd_pool.h       pools: K and V of all layers, in pages
 *   attnd_pages.h      leases of pages that the service owns
 *   attnd_operation.h  what is submitted, and how it completes
 *   attnd_plan.h       a batch, planned once for all layers, and its next tokens
 *   attnd_run.h        K and V stored, and attention, layer by layer
 *   attnd_launch.h     launched runs: for CUDA streams and graphs
 *   attnd_prefix.h     one prefix cache for all engines of a pool
 *
 * Two more are for engines that need them: attnd_merge.h (two results of the same queries become
 * one) and attnd_tables.h (other forms of page tables, and where they may lie).
 *
 * Threads: in one session, one thread may submit (attnd_plan_set, attnd_plan_advance, attnd_append,
 * attnd_run, attnd_merge_state, attnd_cancel) while one other waits (attnd_wait). All other calls
 * take a lock and may be made from any thread. Sessions are independent of each other. Fork: a
 * session belongs to the process that opened it. In a child every call returns -ATTND_E_FORKED,
 * attnd_close() only frees the child's copy, and the shared mappings are not there. Errors: 0 (or a
 * count) on success, -ATTND_E_* otherwise; attnd_last_fault() tells field, index, value and limit
 * of the calling thread's last failure, attnd_fault_string() makes it a sentence. Structs that
 * begin with `size`: set it to sizeof; fields beyond an older size read as zero.
 *
 * Arrays: a pointer says nothing of a length, so each array is as long as its comment says, in
 * brackets: of a count beside it, or of the last entry of the array that divides it. The library
 * reads that many entries, whatever is there. What it reads is checked by the service, in its own
 * copy; the two entries that say how long another array is (kv_indptr[requests] and
 * page_indptr[entries]) are believed, once they are not negative. NULL where a comment does not
 * allow it, for an array that has entries, is -ATTND_E_INVALID.
 *
 * Shapes follow FlashInfer's names: q and o are [rows, heads_q, head_dim], page tables are CSR,
 * kv_len = page_size * (pages - 1) + last_page_len.
 */
#ifndef ATTND_H
#define ATTND_H

#include "attnd_launch.h"
#include "attnd_memory.h"
#include "attnd_operation.h"
#include "attnd_pages.h"
#include "attnd_plan.h"
#include "attnd_pool.h"
#include "attnd_prefix.h"
#include "attnd_run.h"
#include "attnd_session.h"

#endif
