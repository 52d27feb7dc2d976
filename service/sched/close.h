/*
 * close.h - the end of a session's lanes, in pieces.
 */
#ifndef ATTND_SERVICE_SCHED_CLOSE_H
#define ATTND_SERVICE_SCHED_CLOSE_H

struct attnd_work;

/** attnd_session_close_go() - the item of a closing session, which is gone when it is over. */
int attnd_session_close_go(struct attnd_work *work);

#endif
