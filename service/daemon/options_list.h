/*
 * options_list.h - the table of attnd's options: what --help says of each, and its key. Parsing and
 * values are options.c's.
 */
#ifndef ATTND_SERVICE_OPTIONS_LIST_H
#define ATTND_SERVICE_OPTIONS_LIST_H

#include <argp.h>

enum attnd_option_key {
    KEY_SOCKET = 's',
    KEY_BACKEND = 'b',
    KEY_THREADS = 't',
    KEY_VERBOSE = 'v',
    KEY_QUIET = 'q',
    KEY_VERSION = 'V',
    KEY_WORKER = 256,
    KEY_ISA,
    KEY_LOOP,
    KEY_HEAP,
    KEY_SCRATCH,
    KEY_MEMORY_MAX,
    KEY_HOST_MEMORY_MAX,
    KEY_DAEMON_MEMORY_MAX,
    KEY_DEVICE_MEMORY_MAX,
    KEY_PREFIX_BLOCKS,
    KEY_HOST_CACHE,
    KEY_ALLOW_UID,
    KEY_DEVICE,
    KEY_RESIDENCY,
    KEY_MODULES,
    KEY_SMS,
    KEY_RESERVE,
    KEY_CASCADE,
    KEY_FUSION,
    KEY_EXECUTE,
    KEY_RATES,
    KEY_WATCHDOG,
    KEY_INJECT,
    KEY_TRUST,
    KEY_METRICS,
    KEY_PEER,
    KEY_PEER_LISTEN,
    KEY_PEER_KEY,
    KEY_PEER_INTERFACE,
    KEY_CONFIG,
    KEY_CHECK_CONFIG,
    KEY_LOG_LEVEL
};

/* Ends with an entry of zeros. */
extern const struct argp_option attnd_option_list[];

/* What --help says around them. */
extern const char attnd_options_doc[];

#endif
