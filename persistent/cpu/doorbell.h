/*
 * doorbell.h - the thread that sleeps until somebody rings.
 */
#ifndef ATTND_PERSISTENT_CPU_DOORBELL_H
#define ATTND_PERSISTENT_CPU_DOORBELL_H

#include "persistent/cpu/state.h"

/** attnd_cpu_doorbell_start()/stop() - Return: 0 or -ATTND_E_SYSTEM. */
int attnd_cpu_doorbell_start(struct attnd_backend *backend);
void attnd_cpu_doorbell_stop(struct attnd_backend *backend);
/** attnd_cpu_doorbell_watch() - another set of mailboxes is watched. */
void attnd_cpu_doorbell_watch(struct attnd_cpu_mail *mail);

#endif
