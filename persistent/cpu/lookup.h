/*
 * lookup.h - page ids and lengths of a run, bounded.
 */
#ifndef ATTND_PERSISTENT_CPU_LOOKUP_H
#define ATTND_PERSISTENT_CPU_LOOKUP_H

#include "persistent/cpu/state.h"

/**
 * attnd_cpu_page() - bounded look-up of a page id
 * @index: which page of the entry; below its page_count
 * Return: the page id, or -1 if it lies outside the pool.
 */
int64_t attnd_cpu_page(const struct attnd_cpu_run *run, const struct attnd_entry *entry,
                       uint32_t index);

/** attnd_cpu_kv_len() - tokens of an entry in the run's generation, clamped to its pages. */
uint32_t attnd_cpu_kv_len(const struct attnd_cpu_run *run, uint32_t entry);

/** attnd_cpu_keys_before() - keys on earlier levels than the entry's, by which what is stored
 * rotated is further from the first; 0 where nothing is. */
int32_t attnd_cpu_keys_before(const struct attnd_cpu_run *run, uint32_t entry);

#endif
