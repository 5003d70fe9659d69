/* Sizes that the kernels of wide rows (wide_rows.cu) and their launcher agree on. Their arguments
 * are those of row_args.h. */
#ifndef KM_CUDA_WIDE_ARGS_H
#define KM_CUDA_WIDE_ARGS_H

#define KM_WIDE_THREADS 512                  /* that compute: whole warps, at most 992 */
#define KM_WIDE_BLOCK (KM_WIDE_THREADS + 32) /* and a warp that fetches */
#define KM_WIDE_MOST 8                       /* blocks to a cluster: 1, 2, 4 or 8 */
#define KM_WIDE_SHARED (220 << 10) /* bytes of dynamic shared memory: parts of rows and weights */

#endif
