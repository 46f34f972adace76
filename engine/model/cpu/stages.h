/* Threads share out the parts of each stage with a counter. A thread that finds no part left continues as soon as all are
   done, so a thread that the system suspends holds up no more than its own part. */

#ifndef MIDSTREAM_CPU_STAGES_H
#define MIDSTREAM_CPU_STAGES_H

#include "elements.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

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

/* What all threads share; each source has its own. */
struct run;

/* Do one part of a stage. `given` is the thread's own. */
typedef void work(const struct run *run, void *given, count part);

/* Do parts of the next stage until none is left, and wait for those of other threads. */
SHARED void share(struct stage **next, count parts, work *todo, const struct run *run, void *given) {
    struct stage *stage = (*next)++;
    count part, done = 0;
    for (; (part = atomic_fetch_add_explicit(&stage->claimed, 1, memory_order_relaxed)) < parts; done++)
        todo(run, given, part);
    if (done) atomic_fetch_add_explicit(&stage->done, done, memory_order_acq_rel);
    for (count looks = 0; atomic_load_explicit(&stage->done, memory_order_acquire) < parts; looks++) {
        if (looks < PATIENCE) rest_a_moment();
        else sched_yield();
    }
}

/* Memory for what stages pass on: pieces of one allocation. Without a `start`, their bytes are only counted. */
struct room {
    char *start;
    count used;
};

/* Take a piece, which begins at a cache line. */
SHARED void *take(struct room *room, count bytes) {
    char *piece = room->start ? room->start + room->used : NULL;
    room->used += (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    return piece;
}

SHARED struct stage *take_stages(struct room *room, count number) {
    struct stage *stages = take(room, number * (count)sizeof *stages);
    for (count i = 0; stages && i < number; i++) {
        atomic_init(&stages[i].claimed, 0);
        atomic_init(&stages[i].done, 0);
    }
    return stages;
}

#endif
