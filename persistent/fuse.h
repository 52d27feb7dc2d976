/*
 * fuse.h - both classes of a batch at once: when all is done, if so many workers compute and cut so
 * many blocks. plan/fuse.c says why, and looks for the best of all ways on a host; cut_fuse.h does
 * on a GPU, where numbers are floats.
 */
#ifndef ATTND_PERSISTENT_FUSE_H
#define ATTND_PERSISTENT_FUSE_H

#include "persistent/visible.h"

#include <math.h>

#ifdef __CUDACC__
typedef float attnd_real;
#else
typedef double attnd_real;
#endif

/* What is left of the sum of both classes if nobody ever waited, for fusion to be looked at. */
#define ATTND_FUSE_FLOOR ((attnd_real)0.98)
/* Both at once is chosen if it takes less than this much of the time in which all compute first. */
#define ATTND_FUSE_GAIN ((attnd_real)0.98)
/* Blocks are cut as those of one class are if all of this takes longer than this much of the sum of
 * both classes: then there are too few of them, or one is longer than all others together. */
#define ATTND_FUSE_END ((attnd_real)1.1)
/* Blocks of a class whose times differ by less end in waves. */
#define ATTND_FUSE_ALIKE ((attnd_real)0.75)
/* Workers beside which others compute read so much of what they would alone. */
#define ATTND_FUSE_BESIDE ((attnd_real)0.9)
/* Parts that a compute-bound block is cut into at most where some blocks are, and the least time of
 * one; and where all are, because all workers compute first. Fewer parts are taken if more do not
 * end by so much earlier. */
#define ATTND_FUSE_PARTS_MAX 3u
#define ATTND_FUSE_PART_NS_MIN ((attnd_real)15e3)
#define ATTND_FUSE_ALL_PARTS_MAX 4u
#define ATTND_FUSE_PARTS_GAIN ((attnd_real)0.97)
/* A memory-bound item of a fused batch is at most this part of it, because readers do not end
 * together; but not shorter than that. */
#define ATTND_FUSE_ITEMS ((attnd_real)8.0)
#define ATTND_FUSE_ITEM_NS_MIN ((attnd_real)12e3)

/* Items that are more than a plan has tiles for become longer by this factor. */
#define ATTND_FUSE_COARSER ((attnd_real)1.125)

/* No way with fewer workers is looked for behind one that has less than this part of them compute,
 * and the numbers of waves that are looked at lie so close. */
#define ATTND_FUSE_COMPUTING_MIN ((attnd_real)0.125)
#define ATTND_FUSE_WAVES_STEP ((attnd_real)1.125)

/* A way to compute: @whole blocks, and @cut ones in @parts each, by so many workers, in waves of
 * whole blocks and behind these in waves of parts. */
struct attnd_fuse_way {
    attnd_real whole, cut, workers, waves;
    uint32_t parts, part_waves;
};

/* What all of this needs to know of the batch. */
struct attnd_fuse_batch {
    attnd_real workers, heads, blocks;
    attnd_real longest_ns, shortest_ns, mean_ns; /* compute-bound blocks of one KV head */
    attnd_real part_ns;                          /* what a part takes more */
    attnd_real reading_ns;                       /* all that is read, by all workers */
    attnd_real readers;  /* workers that just keep the memory busy, on paper */
    attnd_real cuts_max; /* parts that the plan has tiles for */
};

static ATTND_HOST_DEVICE attnd_real attnd_fuse_larger(attnd_real a, attnd_real b)
{
    return a > b ? a : b;
}

static ATTND_HOST_DEVICE attnd_real attnd_fuse_smaller(attnd_real a, attnd_real b)
{
    return a < b ? a : b;
}

static ATTND_HOST_DEVICE attnd_real attnd_fuse_part_ns(const struct attnd_fuse_batch *batch,
                                                       const struct attnd_fuse_way *how)
{
    return batch->longest_ns / how->parts + batch->part_ns;
}

/* As many blocks stay whole as @workers begin in @waves, or @more. Return: workers that it takes.
 */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_take_whole(const struct attnd_fuse_batch *batch,
                                                          attnd_real workers, attnd_real more,
                                                          struct attnd_fuse_way *how)
{
    const attnd_real heads = batch->heads, whole = floor(how->waves * workers / heads) + more;

    how->whole = how->waves > 0 ? attnd_fuse_smaller(whole, batch->blocks) : 0;
    if (!how->part_waves)
        how->whole = batch->blocks;
    how->cut = batch->blocks - how->whole;
    const attnd_real begin = how->waves > 0 ? ceil(how->whole * heads / how->waves) : 0;
    return how->cut > 0
               ? attnd_fuse_larger(begin, ceil(how->cut * how->parts * heads / how->part_waves))
               : begin;
}

/* Workers for @waves of whole blocks and @part_waves of parts behind them, as few as will do.
 * Return: 0 if the plan has not so many tiles. */
static ATTND_HOST_DEVICE int attnd_fuse_take_waves(const struct attnd_fuse_batch *batch,
                                                   attnd_real waves, uint32_t part_waves,
                                                   uint32_t parts, struct attnd_fuse_way *how)
{
    const attnd_real items = batch->blocks * batch->heads;
    const attnd_real even = ceil(items / (waves + (attnd_real)part_waves / parts));
    struct attnd_fuse_way fewer = {0, 0, 0, waves, parts, part_waves}, more = fewer;

    fewer.workers = attnd_fuse_take_whole(batch, even, 0, &fewer);
    more.workers = attnd_fuse_take_whole(batch, even, 1, &more);
    *how = fewer.workers < more.workers ? fewer : more;
    return how->cut * (how->parts - 1) <= batch->cuts_max;
}

/* Time of workers that compute-bound items take. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_busy_ns(const struct attnd_fuse_batch *batch,
                                                       const struct attnd_fuse_way *how)
{
    return (batch->blocks * batch->mean_ns + how->cut * how->parts * batch->part_ns) * batch->heads;
}

/* The item that begins last. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_last_ns(const struct attnd_fuse_batch *batch,
                                                       const struct attnd_fuse_way *how)
{
    return how->cut > 0 ? attnd_fuse_part_ns(batch, how) : batch->longest_ns;
}

static ATTND_HOST_DEVICE int attnd_fuse_alike(const struct attnd_fuse_batch *batch)
{
    return batch->shortest_ns >= batch->longest_ns * ATTND_FUSE_ALIKE;
}

/* When they are done if @share_ns were each worker's, and none waited. The longest block of the
 * last head begins when all of the other heads' have begun. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_uneven_end(const struct attnd_fuse_batch *batch,
                                                          const struct attnd_fuse_way *how,
                                                          attnd_real share_ns)
{
    const attnd_real longest = how->whole > 0 ? batch->longest_ns : attnd_fuse_part_ns(batch, how);
    const attnd_real before = share_ns * (batch->heads - 1) / batch->heads;
    const attnd_real end = share_ns + attnd_fuse_last_ns(batch, how) / 2;

    return attnd_fuse_alike(batch) ? end : attnd_fuse_larger(end, before + longest);
}

/* When they are done, in waves if they are alike. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_compute_end(const struct attnd_fuse_batch *batch,
                                                           const struct attnd_fuse_way *how)
{
    const attnd_real whole =
        how->waves > 0 ? (how->waves - 1) * batch->mean_ns + batch->longest_ns : 0;

    if (!attnd_fuse_alike(batch))
        return attnd_fuse_uneven_end(batch, how, attnd_fuse_busy_ns(batch, how) / how->workers);
    return whole + (how->cut > 0 ? how->part_waves * attnd_fuse_part_ns(batch, how) : 0);
}

/* How fast @reading workers read, of how fast the memory is: a few as fast as each of them can,
 * many as fast as it, and those who could just keep it busy hinder each other a little. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_reading_speed(const struct attnd_fuse_batch *batch,
                                                             attnd_real reading)
{
    const attnd_real slower = batch->readers / attnd_fuse_larger(reading, (attnd_real)1e-3),
                     squared = slower * slower;

    return 1 / sqrt(sqrt(1 + squared * squared));
}

/* When all is done. Workers that the last wave leaves over read, too, and readers that have nothing
 * left to read help to compute. */
static ATTND_HOST_DEVICE attnd_real attnd_fuse_end(const struct attnd_fuse_batch *batch,
                                                   const struct attnd_fuse_way *how)
{
    const attnd_real speed =
        ATTND_FUSE_BESIDE * attnd_fuse_reading_speed(batch, batch->workers - how->workers);
    const attnd_real end = attnd_fuse_compute_end(batch, how),
                     busy = attnd_fuse_busy_ns(batch, how);
    const attnd_real last = attnd_fuse_smaller(attnd_fuse_last_ns(batch, how), end),
                     full = end - last;
    const attnd_real ending = attnd_fuse_larger(0, (busy - how->workers * full) / last);
    attnd_real left_ns = batch->reading_ns - full * speed;

    if (left_ns <= 0) {
        const attnd_real read_ns = batch->reading_ns / speed;
        const attnd_real rest_ns = busy - how->workers * read_ns;
        return attnd_fuse_uneven_end(batch, how, read_ns + rest_ns / batch->workers);
    }
    left_ns -=
        last * ATTND_FUSE_BESIDE *
        attnd_fuse_reading_speed(batch, batch->workers - attnd_fuse_smaller(ending, how->workers));
    return end + attnd_fuse_larger(left_ns, 0);
}

#endif
