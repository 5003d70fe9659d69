/* Codes of vectors, the trellis of dense ones (vector/trellis.h): what every backend knows of them. */
#ifndef KM_BACKEND_TRELLIS_H
#define KM_BACKEND_TRELLIS_H

#define KM_ENCODE_SCALES 255 /* steps of the geometric row of scales */

#define KM_TRELLIS_LENGTH 12 /* bits of the window */
#define KM_TRELLIS_STATES (1 << KM_TRELLIS_LENGTH)
#define KM_TRELLIS_RATE 8 /* most bits of one step */

/* The state in which a ring closes is that of a search that comes round from SETTLE bits before the
 * end and goes on for as many behind the beginning. In a ring of fewer bits it is the one of the TRIES
 * cheapest ends of a free search that is cheapest when it is the beginning, too. */
#define KM_TRELLIS_SETTLE (6 * KM_TRELLIS_LENGTH)
#define KM_TRELLIS_TRIES 16
#define KM_TRELLIS_NEVER 1e30f /* the cost of a state that cannot be */

#endif
