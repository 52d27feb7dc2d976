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

/* Those against whom an object counts. */
struct attnd_payer {
    uint32_t session; /* its id; the session may be gone */
    uint32_t user;    /* its place in the service's table of users */
};

/** attnd_quota_payer() - @client, as an object remembers it. */
struct attnd_payer attnd_quota_payer(const struct attnd_client *client);

/**
 * attnd_quota_limit() - how much of a kind one session may have
 *
 * All together may have what there is. Where several users are admitted, one may have half of that,
 * and where there are more than two, half of an equal share is kept for each of the others.
 * A session may have half of what its user may have, and all sessions of a process three quarters.
 * Of host memory a session may have --memory-max. Sessions are counted by process and by user.
 */
uint64_t attnd_quota_limit(const struct attnd_service *service, enum attnd_quota_kind kind);
/** attnd_quota_process_limit(), _user_limit(), _limit_of_all() - all sessions of one process, of
 * one user, and of the service. */
uint64_t attnd_quota_process_limit(const struct attnd_service *service, enum attnd_quota_kind kind);
uint64_t attnd_quota_user_limit(const struct attnd_service *service, enum attnd_quota_kind kind);
uint64_t attnd_quota_limit_of_all(const struct attnd_service *service, enum attnd_quota_kind kind);
/** attnd_quota_user_has_any() - is the place in the table of users that of a user? */
int attnd_quota_user_has_any(const struct attnd_service *service, uint32_t place);
/** attnd_quota_name() - of a kind, for people. */
const char *attnd_quota_name(enum attnd_quota_kind kind);
static inline int attnd_quota_is_bytes(enum attnd_quota_kind kind)
{
    return kind == ATTND_QUOTA_HOST || kind == ATTND_QUOTA_HEAP || kind == ATTND_QUOTA_DAEMON;
}

/** attnd_quota_left() - how much more of a kind @client may take now. */
uint64_t attnd_quota_left(const struct attnd_client *client, enum attnd_quota_kind kind);

/**
 * attnd_quota_take() - count @amount of @kind against @client, its user and all
 * Return: 0; -ATTND_E_NO_MEMORY with nothing counted. The fault has the field of the kind, what
 * would be used then as its value, and the limit that this is beyond: of the session, of its
 * process, of its user, or of all.
 */
int attnd_quota_take(struct attnd_client *client, enum attnd_quota_kind kind, uint64_t amount,
                     struct attnd_fault *fault);
/** attnd_quota_give() - take it off again. Never fails. */
void attnd_quota_give(struct attnd_service *service, struct attnd_payer payer,
                      enum attnd_quota_kind kind, uint64_t amount);

/** attnd_quota_user_left() - how much more of a kind the user of @payer may have; its session may
 * be gone. */
uint64_t attnd_quota_user_left(const struct attnd_service *service, struct attnd_payer payer,
                               enum attnd_quota_kind kind);
/** attnd_quota_count() - count it against @payer; attnd_quota_user_left() has said that it fits. */
void attnd_quota_count(struct attnd_service *service, struct attnd_payer payer,
                       enum attnd_quota_kind kind, uint64_t amount);
/** attnd_quota_give_unlisted() - the same for a client that is in no slot of the service. */
void attnd_quota_give_unlisted(struct attnd_client *client, enum attnd_quota_kind kind,
                               uint64_t amount);

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
