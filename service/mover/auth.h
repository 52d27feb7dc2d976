/*
 * auth.h - who has the key: HMAC-SHA256 over every frame of a control link.
 *
 * Both sides send a nonce. What a link's frames are signed with is made of the key and both, and
 * each frame's number and direction are signed with it: nothing can be played again, on this link
 * or on another. Nothing is encrypted.
 */
#ifndef ATTND_SERVICE_MOVER_AUTH_H
#define ATTND_SERVICE_MOVER_AUTH_H

#include <stddef.h>
#include <stdint.h>

#define ATTND_AUTH_BYTES 32u /* of a nonce, and of a signature */
#define ATTND_AUTH_KEY_BYTES_MIN 16u
#define ATTND_AUTH_KEY_BYTES_MAX 4096u

struct attnd_auth_key {
    size_t bytes;
    uint8_t data[ATTND_AUTH_KEY_BYTES_MAX];
};

struct attnd_auth {
    uint8_t key[ATTND_AUTH_BYTES]; /* of this link */
    uint8_t own;                   /* direction: 0 the side that connected, 1 the other one */
    uint64_t sent, received;       /* frames */
};

/** attnd_auth_load() - the key is the file's bytes, but for line ends at its end
 * @why: receives what is wrong with it
 * The file is of this user or of root, and nobody else may read it. Return: 0; < 0. */
int attnd_auth_load(const char *path, struct attnd_auth_key *key, char *why, size_t why_bytes);

/** attnd_auth_nonce() - @bytes that nobody can guess. Return: 0; -ATTND_E_SYSTEM. */
int attnd_auth_nonce(uint8_t *nonce, size_t bytes);

/** attnd_auth_begin() - @nonces: of the side that connected, then of the other one
 * Return: 0; -ATTND_E_SYSTEM. */
int attnd_auth_begin(struct attnd_auth *auth, const struct attnd_auth_key *key, uint8_t own,
                     const uint8_t nonces[2][ATTND_AUTH_BYTES]);
/** attnd_auth_sign() - the next frame that is sent. Return: 0; -ATTND_E_SYSTEM. */
int attnd_auth_sign(struct attnd_auth *auth, const void *frame, size_t bytes, uint8_t *signature);
/** attnd_auth_check() - the next frame that is received. Return: 0; -ATTND_E_PERMISSION. */
int attnd_auth_check(struct attnd_auth *auth, const void *frame, size_t bytes,
                     const uint8_t *signature);

#endif
