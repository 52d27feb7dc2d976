/*
 * shm.c - the life of a memfd: made, mapped, sealed, sent, checked, let go.
 *
 * The enemy is a peer that shrinks a file we have mapped: the next touch would be SIGBUS. Seals
 * take that away once and for all, so nothing here installs a signal handler. They do not stop a
 * peer that holds a writable mapping from punching holes, unless F_SEAL_FUTURE_WRITE is set: on
 * tmpfs a hole reads as zeros, which every reader of shared memory must survive anyway. On hugetlb
 * a process that touches a hole needs a page of the pool, and gets SIGBUS when it is empty; its
 * seals have nothing against that, so imports from there are refused.
 */
#include "ipc/shm.h"

#include "schemas/abi.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static int system_fault(struct attnd_fault *fault, int error)
{
    return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, error, 0);
}

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + ATTND_PAGE_BYTES - 1) & ~(uint64_t)(ATTND_PAGE_BYTES - 1);
}

int attnd_shm_create_unmapped(const char *label, uint64_t size_bytes, int *fd,
                              struct attnd_fault *fault)
{
    if (size_bytes == 0 || size_bytes > INT64_MAX - ATTND_PAGE_BYTES)
        return system_fault(fault, EFBIG);

    int memory = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0)
        return system_fault(fault, errno);
    if (ftruncate(memory, (off_t)round_to_pages(size_bytes)) < 0) {
        int error = errno;
        close(memory);
        return system_fault(fault, error);
    }
    *fd = memory;
    return 0;
}

int attnd_shm_create(const char *label, uint64_t size_bytes, struct attnd_shm *out,
                     struct attnd_fault *fault)
{
    int fd = -1;
    int rc = attnd_shm_create_unmapped(label, size_bytes, &fd, fault);
    if (rc < 0)
        return rc;

    uint64_t mapped_bytes = round_to_pages(size_bytes);
    void *address = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        int error = errno;
        close(fd);
        return system_fault(fault, error);
    }
    *out = (struct attnd_shm){.fd = fd, .address = address, .size_bytes = mapped_bytes};
    return 0;
}

int attnd_shm_seal(int fd, enum attnd_shm_seal seal)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (seal != ATTND_SEAL_POOL)
        seals |= F_SEAL_FUTURE_WRITE;
    return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -ATTND_E_SYSTEM : 0;
}

int attnd_shm_check_import(int fd, uint64_t size_bytes, struct attnd_fault *fault)
{
    struct statfs filesystem;
    struct stat file;
    /* Seals first: only with SHRINK does the size below stay true, and only a file that has seals
     * answers the rest by itself (a FUSE file would ask its server, which may take for ever). */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstatfs(fd, &filesystem) < 0 ||
        fstat(fd, &file) < 0)
        return attnd_fault_set(fault, -ATTND_E_PERMISSION, ATTND_F_SEALS, 0, seals < 0 ? 0 : seals,
                               F_SEAL_SHRINK);
    if (filesystem.f_type != TMPFS_MAGIC)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0, filesystem.f_type,
                               TMPFS_MAGIC);
    if (size_bytes == 0 || (uint64_t)file.st_size < size_bytes)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)size_bytes,
                               file.st_size);
    return 0;
}

/* What has no seals is not asked more. */
int attnd_shm_same_file(int a, int b)
{
    struct stat one, other;

    return fcntl(a, F_GET_SEALS) >= 0 && fcntl(b, F_GET_SEALS) >= 0 && fstat(a, &one) == 0 &&
           fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

int attnd_shm_reopen(int fd)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    return again < 0 ? -errno : again;
}

int attnd_shm_map(int fd, uint64_t size_bytes, int writable, struct attnd_shm *out,
                  struct attnd_fault *fault)
{
    struct stat file;
    if (fstat(fd, &file) < 0)
        return system_fault(fault, errno);
    if (size_bytes == 0 || (uint64_t)file.st_size < size_bytes)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)size_bytes,
                               file.st_size);

    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address = mmap(NULL, size_bytes, protection, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return system_fault(fault, errno);
    /* A forked child must not write the parent's rings. */
    if (madvise(address, size_bytes, MADV_DONTFORK) < 0) {
        int error = errno;
        munmap(address, size_bytes);
        return system_fault(fault, error);
    }
    *out = (struct attnd_shm){.fd = fd, .address = address, .size_bytes = size_bytes};
    return 0;
}

int attnd_shm_replace(void *address, uint64_t bytes, int fd, struct attnd_fault *fault)
{
    void *mapped = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    return mapped == MAP_FAILED ? system_fault(fault, errno) : 0;
}

int attnd_shm_map_joined(const int *fds, const uint64_t *bytes, struct attnd_shm *out,
                         struct attnd_fault *fault)
{
    uint64_t all_bytes;
    if (__builtin_add_overflow(bytes[0], bytes[1], &all_bytes))
        return system_fault(fault, EFBIG);
    /* A place that is large enough for both; then each where it belongs. */
    char *address =
        mmap(NULL, all_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return system_fault(fault, errno);
    int rc = attnd_shm_replace(address, bytes[0], fds[0], fault);
    if (rc == 0)
        rc = attnd_shm_replace(address + bytes[0], bytes[1], fds[1], fault);
    if (rc < 0) {
        munmap(address, all_bytes);
        return rc;
    }
    *out = (struct attnd_shm){.fd = -1, .address = address, .size_bytes = all_bytes};
    return 0;
}

void attnd_shm_unmap(struct attnd_shm *shm)
{
    if (shm->address)
        munmap(shm->address, shm->size_bytes);
    if (shm->fd >= 0)
        close(shm->fd);
    *shm = (struct attnd_shm){.fd = -1};
}
