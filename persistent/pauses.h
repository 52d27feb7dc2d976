/*
 * pauses.h - whether kernels that come and go wait for another run in a stream: the choice alone,
 * for the GPU's dispatcher and for a test.
 *
 * Kernels of engines between two runs of small layers take less time than it takes a gang to leave
 * and the next one to come. A gang waits where that is likely: its own first doorbell came soon
 * behind the last gang's last run. Kernels of engines lose the time that it waits in vain. So gangs
 * that follow one another and wait in vain become rare: none in between, one, three, seven.
 */
#ifndef ATTND_PERSISTENT_PAUSES_H
#define ATTND_PERSISTENT_PAUSES_H

#include "persistent/visible.h"

/* So long a gang waits: as long as it takes to leave and come back. */
#define ATTND_PAUSE_NS 8000u
/* So soon its first doorbell must have been taken: a pause, and what a gang takes to come. */
#define ATTND_PAUSE_SOON_NS 15000u
/* And no more so long behind its begin: others may want the SMs that it holds. */
#define ATTND_PAUSES_NS 200000u
/* One gang of so many waits where all that did waited in vain. */
#define ATTND_PAUSES_RARE 1024u

enum attnd_pause {
    ATTND_PAUSE_NONE,     /* it did not wait */
    ATTND_PAUSE_ANSWERED, /* the last time another doorbell came */
    ATTND_PAUSE_VAIN
};

/* All zero: every gang may wait. */
struct attnd_pauses {
    uint32_t rare; /* one of so many may, from the next in vain on; 0 and 1: every gang */
    uint32_t over; /* gangs from now on that may not */
};

/** attnd_pauses_may() - may the gang that begins wait? */
static ATTND_HOST_DEVICE int attnd_pauses_may(const struct attnd_pauses *pauses)
{
    return pauses->over == 0;
}

/** attnd_pauses_note() - how the gang that ends has waited; @may: attnd_pauses_may() at its begin.
 */
static ATTND_HOST_DEVICE void attnd_pauses_note(struct attnd_pauses *pauses, int may,
                                                enum attnd_pause pause)
{
    if (!may) {
        pauses->over--;
    } else if (pause == ATTND_PAUSE_ANSWERED) {
        pauses->rare = 0;
    } else if (pause == ATTND_PAUSE_VAIN) {
        pauses->rare = pauses->rare == 0                  ? 1
                       : pauses->rare < ATTND_PAUSES_RARE ? pauses->rare * 2
                                                          : ATTND_PAUSES_RARE;
        pauses->over = pauses->rare - 1;
    }
}

#endif
