/* options_list.c - see options_list.h. */
#include "service/daemon/options_list.h"

#include "ipc/socket_path.h"

const struct argp_option attnd_option_list[] = {
    {"socket", KEY_SOCKET, "PATH", 0,
     "Listen here (default: " ATTND_SOCKET_RULE ", whose directory is made if it is missing)", 1},
    {"allow-uid", KEY_ALLOW_UID, "USER", 0,
     "Serve this user, a number or a name; repeat for more (default: the daemon's own). The "
     "socket's "
     "mode is 0600, and 0666 when another user is named: the peer's credentials decide",
     1},
    {"backend", KEY_BACKEND, "NAME", 0, "auto, cpu or cuda (default: auto)", 2},
    {"worker", KEY_WORKER, "PATH", 0,
     "The worker program (default: attnd-worker beside attnd, else on PATH)", 2},
    {"isa", KEY_ISA, "NAME", 0,
     "Instruction set of the worker: avx512, avx2, portable; of a GPU sm_90a (Hopper) or sm_80 "
     "(the "
     "kernels of every GPU from that on) (default: the best there is)",
     2},
    {"threads", KEY_THREADS, "N", 0, "Threads of the CPU worker (default: all processors)", 2},
    {"device", KEY_DEVICE, "N", 0,
     "GPU of the CUDA worker, as CUDA numbers them under this CUDA_VISIBLE_DEVICES (default: 0)",
     2},
    {"residency", KEY_RESIDENCY, "MODE", 0,
     "How the CUDA worker lives beside other kernels of its GPU: elastic (on all SMs, but only "
     "while something is queued), shared (resident on --sms of them), exclusive (on all), or auto: "
     "elastic (default: auto)",
     2},
    {"modules", KEY_MODULES, "DIR", 0,
     "Load kernels that the CUDA worker was built without from this directory, as attnd-variant "
     "made them. Nobody but root and the daemon's user may write there (default: none are loaded)",
     2},
    {"reserve", KEY_RESERVE, "N", 0,
     "Of the SMs of an elastic worker so many stay its own: runs are answered while kernels of "
     "others fill the rest, and such a kernel that wants all SMs at once takes twice the time "
     "(default: 0)",
     2},
    {"sms", KEY_SMS, "N", 0, "SMs of a shared worker (default: half of the GPU's)", 2},
    {"cascade", KEY_CASCADE, "MODE", 0,
     "Leading pages that requests side by side in a batch have in common are read once: off, hint "
     "(only in batches that say so), or auto: wherever it is expected to save time (default: auto)",
     2},
    {"fusion", KEY_FUSION, "MODE", 0,
     "Compute-bound and memory-bound work of one batch: off (one after the other), sm-split (at "
     "once, on different workers), or auto: at once where that is expected to end earlier "
     "(default: "
     "auto)",
     2},
    {"execute", KEY_EXECUTE, "WHO", 0,
     "Who executes the runs that an engine's stream launches, where the session does not say: "
     "engine (a kernel in that stream), service (the worker), or auto: the engine where the worker "
     "is a GPU's and the kernels' files are there (default: auto)",
     2},
    {"rates", KEY_RATES, "LIST", 0,
     "What plans are made with: GFLOP/s of one worker, GB/s that one reads of the memory, GB/s of "
     "the L2, and GB/s of all together, with commas between them; or auto: what the first "
     "worker measures (default: auto)",
     2},
    {"watchdog", KEY_WATCHDOG, "SECONDS", 0,
     "A worker process that does not move for so long is killed and started again; 0: never "
     "(default: 3)",
     2},
    {"inject", KEY_INJECT, "FAULT", OPTION_HIDDEN, "Tests: a fault that the first worker makes", 2},
    {"loop", KEY_LOOP, "KIND", 0, "auto, io_uring or epoll (default: auto)", 3},
    {"heap", KEY_HEAP, "SIZE", 0, "Memory for plans and pools' descriptions (default: 256M)", 3},
    {"scratch", KEY_SCRATCH, "SIZE", 0,
     "Memory for partial results (default: of a GPU a sixty-fourth, else 256M). Half of it is for "
     "prepared runs, and of that half for one session",
     3},
    {"memory-max", KEY_MEMORY_MAX, "SIZE", 0,
     "Host memory of one session at most: what the service makes for it, and what it registers "
     "(default: half of what heap, scratch and --host-cache leave of the machine's memory, or of "
     "the "
     "control group's)",
     3},
    {"host-memory-max", KEY_HOST_MEMORY_MAX, "SIZE", 0,
     "Host memory of all sessions together, made and registered: a CUDA worker pins all of it "
     "(default: three quarters of what heap, scratch and --host-cache leave of the machine's "
     "memory, "
     "or of the control group's)",
     3},
    {"daemon-memory-max", KEY_DAEMON_MEMORY_MAX, "SIZE", 0,
     "The daemon's own memory for all sessions together: leases, plans, batches that wait, tickets "
     "(default: an eighth of what is left as for --memory-max). Of this, of the "
     "heap, of pools, tickets and registered memories one session may have half; where several "
     "users are admitted one user may have half, and a session half of that",
     3},
    {"prefix-blocks", KEY_PREFIX_BLOCKS, "N", 0,
     "Blocks of all prefix trees together, at up to 128 bytes of the daemon's memory each; the "
     "pools of one process may have half (default: 4194304)",
     3},
    {"host-cache", KEY_HOST_CACHE, "SIZE", 0,
     "Host memory below the prefix trees: what is evicted from a pool goes there, and comes back "
     "when it is asked for. A CUDA worker pins it as it is needed. Where several users are "
     "admitted the pools of one user may have half (default: none)",
     3},
    {"device-memory-max", KEY_DEVICE_MEMORY_MAX, "SIZE", 0,
     "Memory of the GPU that the service makes for one session at most (default: what the GPU has)",
     3},
    {"trust", KEY_TRUST, NULL, 0,
     "Take GPU memory of engines also by legacy IPC handle and by pool pointer: what they send "
     "goes to the driver unseen, and they must not free it before the service has let go",
     2},
    {"peer", KEY_PEER, "NAME=PATH|HOST:PORT", 0,
     "Bring pages of tickets of the service that listens on this socket: another one of this host, "
     "of the same user; or of the one of another host that listens there (--peer-listen). HOST is "
     "an address in numbers, of IPv6 in brackets. Repeat for more (default: none)",
     1},
    {"peer-listen", KEY_PEER_LISTEN, "HOST:PORT", 0,
     "Services of other hosts that have the key may claim pages here (default: none may)", 1},
    {"peer-key", KEY_PEER_KEY, "PATH", 0,
     "File of the key that services of all hosts have in common: 16 bytes or more, which nobody "
     "but its owner may read. Needed for services of other hosts",
     1},
    {"peer-interface", KEY_PEER_INTERFACE, "NAME", 0,
     "Network interface over which pages go to other hosts (default: all that there are)", 1},
    {"metrics", KEY_METRICS, "PATH|127.0.0.1:PORT", 0,
     "Serve metrics for Prometheus by HTTP: on a unix socket (a path with a slash in it) for the "
     "users that are served, or on loopback for every user of the machine",
     4},
    {"config", KEY_CONFIG, "PATH", 0,
     "Read options from this file, as `name = value` without dashes, `yes` for those without a "
     "value. The command line goes before it. SIGHUP reads it again",
     5},
    {"check-config", KEY_CHECK_CONFIG, NULL, 0,
     "Print every value that would be in force, and where it comes from; exit 1 if the file or the "
     "command line is wrong",
     5},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug (default: info)", 4},
    {"verbose", KEY_VERBOSE, NULL, 0, "Log more: --log-level debug", 4},
    {"quiet", KEY_QUIET, NULL, 0, "Log warnings and errors only: --log-level warning", 4},
    {"version", KEY_VERSION, NULL, 0, "Print the version", -1},
    {0}};

const char attnd_options_doc[] =
    "attnd - the attention service\v"
    "SIZE is a number of bytes with an optional suffix K, M, G or T (powers of 1024).\n"
    "SIGTERM and SIGINT end the service: it stops accepting, finishes what runs, parks the worker "
    "and leaves. A second one ends it at once. SIGHUP reads the file again: budgets, users and the "
    "log level take effect at once, and the log names what waits for a restart.\n\n"
    "Exit codes:\n"
    "  0  ended cleanly\n"
    "  1  bad option or usage\n"
    "  2  the socket cannot be made, or another service listens on it\n"
    "  3  the worker does not start, or there is no such backend\n"
    "  4  an internal failure";
