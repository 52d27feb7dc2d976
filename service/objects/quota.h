/*
 * quota.h - what a session, its user, and all together use of what the daemon has once.
 *
 * Everything that the daemon allocates for a session counts here, before it is allocated, and is
 * taken off when it is freed. An object remembers its payer: it may outlive the session that made
 * it, and then counts against the user alone.
 */
#ifndef ATTND_SERVICE_OBJECTS_QUOTA_H
#define ATTND_SERVICE_OBJECTS_QUOTA_H

#include "service/objects/client.h"

/* Who an object counts against. */
struct attnd_payer {
    uint32_t session; /* its id; the session may be gone */
    uint32_t user;    /* its place in the service's table of users */
};

/** attnd_quota_payer() - @client, as an object remembers it. */
struct attnd_payer attnd_quota_payer(const struct attnd_client *client);

/**
 * attnd_quota_limit() - how much of a kind one session may have
 *
 * All together may have what there is. Where several users are admitted, one may have half of that.
 * A session may have half of what its user may have. Of host memory it may have --memory-max, and
 * sessions are counted by user only.
 */
uint64_t attnd_quota_limit(const struct attnd_client *client, enum attnd_quota_kind kind);
/** attnd_quota_user_limit() - how much of a kind one user may have. */
uint64_t attnd_quota_user_limit(const struct attnd_service *service, enum attnd_quota_kind kind);

/** attnd_quota_left() - how much more of a kind @client may take now. */
uint64_t attnd_quota_left(const struct attnd_client *client, enum attnd_quota_kind kind);

/**
 * attnd_quota_take() - count @amount of @kind against @client, its user and all
 * Return: 0; -ATTND_E_NO_MEMORY with nothing counted. The fault has the field of the kind, what
 * would be used then as its value, and the limit that this is beyond: of the session, of the user,
 * or of all.
 */
int attnd_quota_take(struct attnd_client *client, enum attnd_quota_kind kind, uint64_t amount,
                     struct attnd_fault *fault);
/** attnd_quota_give() - take it off again. Never fails. */
void attnd_quota_give(struct attnd_service *service, struct attnd_payer payer,
                      enum attnd_quota_kind kind, uint64_t amount);

/** attnd_quota_user_left() - how much more of a kind the user of @payer may have; its session may be
 * gone. */
uint64_t attnd_quota_user_left(const struct attnd_service *service, struct attnd_payer payer,
                               enum attnd_quota_kind kind);
/** attnd_quota_count() - count it against @payer; attnd_quota_user_left() has said that it fits. */
void attnd_quota_count(struct attnd_service *service, struct attnd_payer payer,
                       enum attnd_quota_kind kind, uint64_t amount);

/** attnd_quota_charge() - memory of the daemon's own process; the same as attnd_quota_take(). */
static inline int attnd_quota_charge(struct attnd_client *client, uint64_t bytes,
                                     struct attnd_fault *fault)
{
    return attnd_quota_take(client, ATTND_QUOTA_DAEMON, bytes, fault);
}

static inline void attnd_quota_refund(struct attnd_service *service, struct attnd_payer payer,
                                      uint64_t bytes)
{
    attnd_quota_give(service, payer, ATTND_QUOTA_DAEMON, bytes);
}

#endif
