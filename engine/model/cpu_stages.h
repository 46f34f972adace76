/* Threads that share out the parts of each stage by counting them. Who finds none left goes on as soon as all are done,
   so a thread that the system keeps waiting holds up no more than the part that it has. */

#ifndef MIDSTREAM_CPU_STAGES_H
#define MIDSTREAM_CPU_STAGES_H

#include "../attention/cpu_elements.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    PATIENCE = 4096, /* looks at what others do before the processor is offered to them */
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

/* Take the next part of a stage. Returns 0 where none is left. */
SHARED int claimed(struct stage *stage, count parts, count *part) {
    *part = atomic_fetch_add_explicit(&stage->claimed, 1, memory_order_relaxed);
    return *part < parts;
}

/* Say that so many parts were done here, and wait for the others. */
SHARED void finish_stage(struct stage *stage, count parts, count done) {
    if (done) atomic_fetch_add_explicit(&stage->done, done, memory_order_acq_rel);
    for (count looks = 0; atomic_load_explicit(&stage->done, memory_order_acquire) < parts; looks++) {
        if (looks < PATIENCE) rest_a_moment();
        else sched_yield();
    }
}

/* Bytes of room, each piece of which begins at a line of the cache. */
SHARED count rounded_up(count bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

SHARED char *aligned(void *room) { return (char *)(((uintptr_t)room + ALIGNED - 1) / ALIGNED * ALIGNED); }

SHARED char *take(char **room, count bytes) {
    char *taken = *room;
    *room += rounded_up(bytes);
    return taken;
}

#endif
