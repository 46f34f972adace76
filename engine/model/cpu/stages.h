/* Threads share out the parts of each stage with a counter. A thread that finds no part left goes on as soon as all are
   done, so a thread that the system suspends holds up no more than its own part. */

#ifndef MIDSTREAM_CPU_STAGES_H
#define MIDSTREAM_CPU_STAGES_H

#include "elements.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    PATIENCE = 4096, /* how often a waiting thread looks before it yields the processor */
    ALIGNED = 64
};

struct stage {
    _Alignas(ALIGNED) atomic_long claimed;
    _Alignas(ALIGNED) atomic_long done;
};

static inline void rest_a_moment(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

SHARED void begin_stages(struct stage *stages, count number) {
    for (count i = 0; i < number; i++) {
        atomic_init(&stages[i].claimed, 0);
        atomic_init(&stages[i].done, 0);
    }
}

/* Take the next part of a stage. Returns 0 if none is left. */
SHARED int claimed(struct stage *stage, count parts, count *part) {
    *part = atomic_fetch_add_explicit(&stage->claimed, 1, memory_order_relaxed);
    return *part < parts;
}

/* Add `done` parts to those that are done, and wait for the others. */
SHARED void finish_stage(struct stage *stage, count parts, count done) {
    if (done) atomic_fetch_add_explicit(&stage->done, done, memory_order_acq_rel);
    for (count looks = 0; atomic_load_explicit(&stage->done, memory_order_acquire) < parts; looks++) {
        if (looks < PATIENCE) rest_a_moment();
        else sched_yield();
    }
}

/* Bytes rounded up to cache lines, so that each piece of room begins at one. */
SHARED count rounded_up(count bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

SHARED char *aligned(void *room) { return (char *)(((uintptr_t)room + ALIGNED - 1) / ALIGNED * ALIGNED); }

SHARED char *take(char **room, count bytes) {
    char *taken = *room;
    *room += rounded_up(bytes);
    return taken;
}

#endif
