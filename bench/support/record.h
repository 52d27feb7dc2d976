/*
 * record.h - figures that are kept: what was measured, where, of which commit, by which command.
 *
 * One JSON file per suite and device, <directory>/<suite>-<device>.json, replaced whole: either all
 * figures of a run are there or those of the run before. A figure of uncommitted changes cannot be
 * found again, so a dirty checkout is refused; where that is allowed on request the record says so,
 * and bench/results does not take it even then.
 */
#ifndef ATTND_BENCH_SUPPORT_RECORD_H
#define ATTND_BENCH_SUPPORT_RECORD_H

#include <stdbool.h>
#include <stddef.h>

#define BENCH_RECORDS_MAX 192

struct bench_record {
    char name[64]; /* suite.figure, unit last: "plan.advance_us" */
    double value;
    char unit[24];
    char better[8];  /* "lower" or "higher" */
    char device[32]; /* "cpu", "h100" */
    char cpu[96];
    char date[24]; /* 2026-11-21T02:00:00Z */
    char commit[48];
    bool dirty;
    char command[512];
    char notes[1280];
};

/* What all records of one run have in common: the fields from device to command. */
struct bench_stamp {
    struct bench_record common;
    bool allow_dirty;
    char root[256]; /* of the checkout; "": there is none */
};

/**
 * bench_stamp_take() - where, when and of what the figures of this run are
 * @device: the backend's device, a word for a file name
 * @why:    receives a sentence on failure
 * Asks git about the checkout in the current directory, or believes $ATTND_COMMIT (a commit, "+"
 * behind it for changes) where there is none. Return: 0; -1 if neither is there, or it is dirty and
 * @allow_dirty is false.
 */
int bench_stamp_take(struct bench_stamp *stamp, const char *device, bool allow_dirty, int argc,
                     char **argv, char *why, size_t why_bytes);

/** bench_record_make() - a record with the stamp's fields; @notes may be NULL. */
struct bench_record bench_record_make(const struct bench_stamp *stamp, const char *name,
                                      double value, const char *unit, const char *better,
                                      const char *notes);

/**
 * bench_records_write() - replace @directory/<suite>-<device>.json
 * Return: 0; -1 with a sentence in @why and the file as it was before.
 */
int bench_records_write(const struct bench_stamp *stamp, const char *directory, const char *suite,
                        const struct bench_record *records, size_t count, char *why,
                        size_t why_bytes);

/**
 * bench_records_read() - the records of a file
 * @records: [BENCH_RECORDS_MAX]
 * Return: how many; -1 with a sentence in @why if the file is not exactly what is written here.
 */
int bench_records_read(const char *path, struct bench_record *records, char *why, size_t why_bytes);

#endif
