/*
 * image.pml - runs that the engine's own stream executes, against sets, unprepare, release and
 * deaths (schemas/engine.h; persistent/cuda/engine/engine.cu, tables.cuh; client/cuda/engine_*.c).
 *
 * The daemon writes a plan's image, of two words, whenever it likes, and may die while it does. The
 * GPU executes a stream in its order: a graph of a refresh and a run, launched at any time, and runs
 * outside of it. Beside that a kernel of the library's own fills or clears the run's slot, and the
 * host unprepares and frees memory.
 *
 * Always: what a run executes is whole, at least as new as the last set that was complete when its
 * refresh was enqueued, and has the tables of the same set; it reads no memory that was freed, nor
 * another run's in place of its own; and no refresh waits for ever.
 *
 * breaks: ONE_LOOK NO_PARITY NO_WAIT NO_SERIAL NO_CLEAR NO_TABLES TABLES_ONCE NO_DEADLINE
 */
#define SETS 2
#define GRAPHS 2
#define MEMORIES 3        /* 0 is none */

/* ---- the daemon ---- */

byte sequence, image[2];
byte complete;            /* the last set whose completion the engine has */
bool fell_silent;         /* it writes nothing more */

inline may_die()
{
    if
    :: goto over
    :: true
    fi
}

active proctype daemon()
{
    byte set;
    do
    :: set == SETS -> break
    :: else ->
        set++;
        sequence++;
        may_die();
        image[0] = set;
        may_die();
        image[1] = set;
        may_die();
        sequence++;
        complete = set
    od;
over:
    fell_silent = true
}

/* ---- the engine's device memory ---- */

byte mirror[2], version;      /* of the plan; 0: it is being copied, or is not there */
bool code;                    /* why nothing is executed */
byte slot;                    /* the serial of the run in it; 0: none */
byte slot_memory, slot_tables;
bool freed[MEMORIES];

mtype = { REFRESH, RUN };
chan stream = [4] of { mtype, byte, byte }; /* RUN: serial; REFRESH: set that is complete */
byte enqueued, executed;

/* ---- the GPU, in the order of the stream ---- */

inline refresh(least)
{
    code = false;
    do
    :: true ->
        if
#ifdef NO_PARITY
        :: saw = sequence
#else
        :: atomic { !(sequence % 2) -> saw = sequence }
#endif
#ifndef NO_DEADLINE
        :: sequence % 2 && fell_silent -> code = true; version = 0; break
#endif
        fi;
        newest = image[0];
        if
        :: newest == version -> break
        :: else
        fi;
        version = 0;
        mirror[0] = newest;
        mirror[1] = image[1];
#ifndef ONE_LOOK
        if
        :: sequence != saw -> goto again
        :: else
        fi;
#endif
        version = newest;
#ifndef NO_TABLES
        if
        :: atomic { slot -> slot_tables = mirror[0] }
        :: else
        fi;
#endif
        break;
again:  skip
    od;
    assert(code || version >= least)
}

active proctype gpu()
{
    byte saw, newest, serial, least;
end:
    do
    :: stream?REFRESH, _, least -> refresh(least); executed++
    :: stream?RUN, serial, _ ->
        if
#ifdef NO_SERIAL
        :: slot && !code && version ->
#else
        :: slot == serial && !code && version ->
#endif
            assert(mirror[0] == mirror[1]);
            assert(slot_tables == mirror[0]);
            assert(slot_memory == serial);  /* each run has its own */
            assert(!freed[slot_memory])
        :: else                             /* -ATTND_E_UNKNOWN, or the plan's code */
        fi;
        executed++
    od
}

/* ---- the host ---- */

/* A kernel of the library's own, beside the stream, which is waited for. */
inline prepare(serial)
{
    slot_memory = serial;
    slot_tables = 0;
    slot = serial;
    do
    :: looked = version;
        if
        :: looked ->
            tables = mirror[0];
            slot_tables = tables
        :: else -> break
        fi;
#ifdef TABLES_ONCE
        break
#else
        if
        :: version == looked -> break
        :: else
        fi
#endif
    od
}

inline launch(what, serial)
{
    atomic { stream!what, serial, complete; enqueued++ }
}

active proctype host()
{
    byte graphs, serial = 0, looked, tables, noted;
    do
    :: serial + 1 == MEMORIES -> break
    :: else ->
        serial++;
        launch(REFRESH, 0);             /* of a graph that has other runs of the plan, in flight */
        prepare(serial);
        /* A run outside of a capture; its launches are noted. */
        launch(REFRESH, 0);
        launch(RUN, serial);
        noted = enqueued;
#ifndef NO_WAIT
        (executed >= noted);
#endif
#ifndef NO_CLEAR
        slot = 0;
#endif
        freed[serial] = true;
        /* A graph that was captured with the run outlives it. */
        if
        :: graphs < GRAPHS ->
            graphs++;
            launch(REFRESH, 0);
            launch(RUN, serial)
        :: true
        fi
    od
}
