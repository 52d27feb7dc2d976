/*
 * doctor.h - what this machine has of what the service wants, for `attnctl doctor`.
 *
 * Every check fills one finding: what was found, how bad it is, and what mends it. Checks come in
 * two parts: one asks the system, the other judges what came back, and only the second knows
 * opinions; tests call it with answers of their own.
 */
#ifndef ATTND_SERVICE_CTL_DOCTOR_H
#define ATTND_SERVICE_CTL_DOCTOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum attnd_health {
    ATTND_HEALTH_OK,
    ATTND_HEALTH_WARN, /* it works, but less well or less safely than it could */
    ATTND_HEALTH_FAIL  /* the service does not start, or not as asked for */
};

struct attnd_finding {
    const char *subject; /* "mps", ...; static */
    enum attnd_health health;
    char what[200];
    char mend[240]; /* "": nothing to do */
};

#define ATTND_FINDINGS_MAX 16

/** attnd_doctor_all() - every check, in the order of the report
 * @socket_path: NULL for the default
 * @findings: [ATTND_FINDINGS_MAX]
 * Blocks for some 100 ms, and for at most 10 s. Return: how many. */
uint32_t attnd_doctor_all(const char *socket_path, struct attnd_finding *findings);

/** attnd_doctor_worst() - ATTND_HEALTH_OK if there are none. */
enum attnd_health attnd_doctor_worst(const struct attnd_finding *findings, uint32_t count);

/** attnd_doctor_say() - fills a finding; @mend may be "". The format makes `what`. */
void attnd_doctor_say(struct attnd_finding *finding, const char *subject, enum attnd_health health,
                      const char *mend, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* ---- doctor_host.c ---- */

/** attnd_doctor_socket() - can the daemon have its socket at @path, and does one listen there?
 * @is_default: nobody has named it, so the daemon makes its directory, too. */
void attnd_doctor_socket(const char *path, int is_default, struct attnd_finding *finding);
/** attnd_doctor_loop() - @reason: why io_uring is not used, "" if it is. */
void attnd_doctor_loop(const char *name, const char *reason, struct attnd_finding *finding);
/** attnd_doctor_memlock() - @limit_bytes: UINT64_MAX for none. */
void attnd_doctor_memlock(uint64_t limit_bytes, struct attnd_finding *finding);
/** attnd_doctor_files() - @limit: descriptors, the hard limit. */
void attnd_doctor_files(uint64_t limit, struct attnd_finding *finding);
/** attnd_doctor_memfd() - @error: errno of making and sealing one, 0 if that worked. */
void attnd_doctor_memfd(int error, struct attnd_finding *finding);
/** attnd_doctor_pidfd() - @error: errno of pidfd_open(), 0 if it worked.
 * @peer_pid: of the daemon as the kernel shows it to us: 0 it is in another pid namespace; -1 there
 * is no daemon to ask. */
void attnd_doctor_pidfd(int error, pid_t peer_pid, struct attnd_finding *finding);

/** attnd_doctor_host() - all of them. Return: how many findings. */
uint32_t attnd_doctor_host(const char *socket_path, struct attnd_finding *findings);

/* ---- doctor_gpu.c ---- */

struct attnd_doctor_gpu {
    int driver; /* 0 none; -1 it does not initialise; else as 13000 */
    int error;  /* CUresult of that */
    int count;
    char name[64];
    int capability; /* 90 */
    int compute_mode;
    int exports; /* memory can be exported as a descriptor */
};

/* An MPS control daemon as its directory shows it. */
struct attnd_doctor_mps {
    char directory[128];
    int state; /* 0 none; 1 answers; -1 left over, nobody answers; -2 not for us (permission) */
    uid_t owner;
    int percentage;         /* of SMs a client may use by default; 0: not known */
    int clients;            /* now; -1: not known */
    int64_t switch_cost_us; /* without MPS: as attnd_switch_cost_text() takes it */
};

/** attnd_doctor_mps_look() - what is in @directory. */
void attnd_doctor_mps_look(const char *directory, struct attnd_doctor_mps *mps);

void attnd_doctor_driver(const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding);
void attnd_doctor_device(const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding);
/** attnd_doctor_mps() - @uid: ours. @gpu: is there one to share? */
void attnd_doctor_mps(const struct attnd_doctor_mps *mps, uid_t uid,
                      const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding);

/** attnd_doctor_gpus() - all of them.
 * @socket_path: of the service that is asked for what no MPS costs; NULL for the default.
 * Return: how many findings. */
uint32_t attnd_doctor_gpus(const char *socket_path, struct attnd_finding *findings);

#endif
