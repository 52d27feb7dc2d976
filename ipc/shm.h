/*
 * shm.h - memfds: made, sealed, mapped, checked.
 *
 * Sealing order (measured to hold against a hostile client): the daemon creates and maps the
 * submission segment, the client maps it and answers, then the daemon adds
 * SHRINK|GROW|FUTURE_WRITE|SEAL. The completion segment gets FUTURE_WRITE before its fd leaves the
 * daemon, so no client ever has a writable mapping. Pool memory is sealed SHRINK|GROW|SEAL only:
 * a second writer must be able to map it.
 */
#ifndef ATTND_IPC_SHM_H
#define ATTND_IPC_SHM_H

#include "schemas/errors.h"

#include <stdint.h>

/* Of a submission segment. */
#define ATTND_ARENA_BYTES_MIN (64u << 10)
#define ATTND_ARENA_BYTES_MAX (1u << 30)

enum attnd_shm_seal {
    ATTND_SEAL_POOL,       /* SHRINK | GROW | SEAL */
    ATTND_SEAL_SUBMISSION, /* SHRINK | GROW | FUTURE_WRITE | SEAL */
    ATTND_SEAL_COMPLETION  /* the same, before the fd is sent */
};

/* A mapping and its fd; fd -1 once given away or not kept. */
struct attnd_shm {
    int fd;
    void *address;
    uint64_t size_bytes;
};

/**
 * attnd_shm_create() - an unnamed memfd of @size_bytes (rounded up to pages), mapped read-write
 * @label: for /proc/pid/maps only
 * Return: 0; -ATTND_E_SYSTEM with errno in @fault->value.
 */
int attnd_shm_create(const char *label, uint64_t size_bytes, struct attnd_shm *out,
                     struct attnd_fault *fault);

/** attnd_shm_create_unmapped() - the same without a mapping: *fd only. For memory the daemon never
 * touches. */
int attnd_shm_create_unmapped(const char *label, uint64_t size_bytes, int *fd,
                              struct attnd_fault *fault);

/** attnd_shm_seal() - add seals. Return: 0 or -ATTND_E_SYSTEM. */
int attnd_shm_seal(int fd, enum attnd_shm_seal seal);

/**
 * attnd_shm_check_import() - may this fd be mapped by the service?
 * A memfd (not of huge pages) of at least @size_bytes > 0 that carries F_SEAL_SHRINK.
 * Return: 0; -ATTND_E_PERMISSION (field SEALS); -ATTND_E_UNSUPPORTED (field MEMORY: huge pages,
 * value is their file system's magic number); -ATTND_E_RANGE (field SIZE, limit: the file's).
 */
int attnd_shm_check_import(int fd, uint64_t size_bytes, struct attnd_fault *fault);

/** attnd_shm_same_file() - 1: both descriptors are of one memfd. Of other files, memory of a GPU
 * for instance, that is not told: 0. */
int attnd_shm_same_file(int a, int b);

/** attnd_shm_reopen() - another descriptor of a memfd, for reading only. Return: it; < 0: errno. */
int attnd_shm_reopen(int fd);

/**
 * attnd_shm_map() - map a received fd, shared, MADV_DONTFORK
 * @fd: on success it is @out's, and attnd_shm_unmap() closes it; set out->fd to -1 to keep it
 * @writable: 0 maps read-only
 * Return: 0; -ATTND_E_RANGE (field SIZE) if the file is shorter; -ATTND_E_SYSTEM.
 */
int attnd_shm_map(int fd, uint64_t size_bytes, int writable, struct attnd_shm *out,
                  struct attnd_fault *fault);

/**
 * attnd_shm_map_joined() - two files, one behind the other, read-write
 * @fds, @bytes: [2]; bytes are whole pages and not more than the files have; the fds stay the
 *               caller's
 * @out:         of both together; its fd is -1
 * Return: 0; -ATTND_E_SYSTEM.
 */
int attnd_shm_map_joined(const int *fds, const uint64_t *bytes, struct attnd_shm *out,
                         struct attnd_fault *fault);

/** attnd_shm_replace() - another file of @bytes at @address, in the place of what is mapped there
 * and without a moment of nothing. Return: 0; -ATTND_E_SYSTEM, and nothing has changed. */
int attnd_shm_replace(void *address, uint64_t bytes, int fd, struct attnd_fault *fault);

/** attnd_shm_unmap() - unmap and close what is there; harmless on a zeroed struct with fd -1. */
void attnd_shm_unmap(struct attnd_shm *shm);

#endif
