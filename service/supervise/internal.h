/*
 * internal.h - what the files of supervise/ share. Nobody else but tests includes it.
 */
#ifndef ATTND_SERVICE_SUPERVISE_INTERNAL_H
#define ATTND_SERVICE_SUPERVISE_INTERNAL_H

#include "service/supervise/supervise.h"

/** attnd_supervisor_arm() - have what is next of the worker done after so long; UINT64_MAX: nothing
 * is. Needs no memory. */
void attnd_supervisor_arm(struct attnd_supervisor *supervisor, uint64_t delay_ns);

/** attnd_watchdog_new() - its timer. Return: 0; -ATTND_E_NO_MEMORY. */
int attnd_watchdog_new(struct attnd_supervisor *supervisor);
/** attnd_watchdog_start()/stop() - from now on the worker's heartbeat has to go on. Harmless twice.
 */
void attnd_watchdog_start(struct attnd_supervisor *supervisor);
void attnd_watchdog_stop(struct attnd_supervisor *supervisor);

/** attnd_supervisor_inherit() - the process is gone. Its runs are lost, its mappings are due
 * again, and the events about both follow. */
void attnd_supervisor_inherit(struct attnd_supervisor *supervisor);

/** attnd_messages_send_due() - send messages about memory that are due. */
void attnd_messages_send_due(struct attnd_supervisor *supervisor);
/** attnd_messages_receive() - take what the worker says, for as long as a turn may take: the socket
 * stays readable while there is more. Return: 1; 0 at end of file. */
int attnd_messages_receive(struct attnd_supervisor *supervisor);

#endif
