/*
 * auth.c - see auth.h. HMAC and SHA-256 are libcrypto's.
 */
#include "service/mover/auth.h"

#include "schemas/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the key ---- */

static int check_file(int fd, char *why, size_t why_bytes)
{
    struct stat status;

    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        snprintf(why, why_bytes, "it is no file");
    else if (status.st_uid != geteuid() && status.st_uid != 0)
        snprintf(why, why_bytes, "it belongs to user %u", (unsigned)status.st_uid);
    else if (status.st_mode & 077)
        snprintf(why, why_bytes, "others may read it (its mode is %03o: chmod 600)",
                 (unsigned)(status.st_mode & 0777));
    else
        return 0;
    return -ATTND_E_PERMISSION;
}

int attnd_auth_load(const char *path, struct attnd_auth_key *key, char *why, size_t why_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0) {
        snprintf(why, why_bytes, "%s", strerror(errno));
        return -ATTND_E_SYSTEM;
    }
    const int rc = check_file(fd, why, why_bytes);
    const ssize_t got = rc == 0 ? read(fd, key->data, sizeof(key->data)) : 0;
    close(fd);
    if (rc < 0)
        return rc;
    key->bytes = got > 0 ? (size_t)got : 0;
    while (key->bytes > 0 &&
           (key->data[key->bytes - 1] == '\n' || key->data[key->bytes - 1] == '\r'))
        key->bytes--;
    if (key->bytes >= ATTND_AUTH_KEY_BYTES_MIN)
        return 0;
    snprintf(why, why_bytes, "it has %zu bytes: at least %u are needed", key->bytes,
             ATTND_AUTH_KEY_BYTES_MIN);
    return -ATTND_E_RANGE;
}

int attnd_auth_nonce(uint8_t *nonce, size_t bytes)
{
    return getrandom(nonce, bytes, 0) == (ssize_t)bytes ? 0 : -ATTND_E_SYSTEM;
}

/* ---- frames ---- */

static int hmac(const uint8_t *key, size_t key_bytes, const void *data, size_t bytes, uint8_t *out)
{
    unsigned length = ATTND_AUTH_BYTES;

    return HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, out, &length) &&
                   length == ATTND_AUTH_BYTES
               ? 0
               : -ATTND_E_SYSTEM;
}

int attnd_auth_begin(struct attnd_auth *auth, const struct attnd_auth_key *key, uint8_t own,
                     const uint8_t nonces[2][ATTND_AUTH_BYTES])
{
    static const char label[] = "attnd-mover 1";
    uint8_t text[sizeof(label) + 2 * ATTND_AUTH_BYTES];

    memcpy(text, label, sizeof(label));
    memcpy(text + sizeof(label), nonces, 2 * ATTND_AUTH_BYTES);
    *auth = (struct attnd_auth){.own = own};
    return hmac(key->data, key->bytes, text, sizeof(text), auth->key);
}

/* Of direction, number, and a digest of the frame: one short text, whatever the frame's length. */
static int sign(const struct attnd_auth *auth, uint8_t direction, uint64_t number,
                const void *frame, size_t bytes, uint8_t *signature)
{
    uint8_t text[1 + sizeof(number) + ATTND_AUTH_BYTES];
    unsigned length = ATTND_AUTH_BYTES;

    text[0] = direction;
    memcpy(text + 1, &number, sizeof(number));
    if (!EVP_Digest(frame, bytes, text + 1 + sizeof(number), &length, EVP_sha256(), NULL))
        return -ATTND_E_SYSTEM;
    return hmac(auth->key, sizeof(auth->key), text, sizeof(text), signature);
}

int attnd_auth_sign(struct attnd_auth *auth, const void *frame, size_t bytes, uint8_t *signature)
{
    return sign(auth, auth->own, auth->sent++, frame, bytes, signature);
}

int attnd_auth_check(struct attnd_auth *auth, const void *frame, size_t bytes,
                     const uint8_t *signature)
{
    uint8_t wanted[ATTND_AUTH_BYTES];

    if (sign(auth, !auth->own, auth->received++, frame, bytes, wanted) < 0 ||
        CRYPTO_memcmp(wanted, signature, sizeof(wanted)) != 0)
        return -ATTND_E_PERMISSION;
    return 0;
}
