/* Numbers of mathematics that formulas use, with more digits than float64 holds; C11 itself
   names none of them. */
#ifndef DM_CONSTANTS_H
#define DM_CONSTANTS_H

#define DM_PI 3.14159265358979323846
#define DM_LOG_PI 1.14472988584940017414
#define DM_LN_2 0.69314718055994530942
#define DM_LN_10 2.30258509299404568402
#define DM_LOG2_E 1.44269504088896340736         /* 1 / ln 2 */
#define DM_SQRT_2 1.41421356237309504880         /* sqrt(2) */
#define DM_SQRT_HALF 0.70710678118654752440      /* 1 / sqrt(2) */
#define DM_SQRT_PI 1.77245385090551602730        /* sqrt(pi) */
#define DM_1_SQRT_PI 0.56418958354775628695      /* 1 / sqrt(pi) */
#define DM_2_SQRT_PI 1.12837916709551257390      /* 2 / sqrt(pi) */
#define DM_SQRT_2_PI 2.50662827463100050242      /* sqrt(2 pi) */
#define DM_1_SQRT_2_PI 0.39894228040143267794    /* 1 / sqrt(2 pi) */
#define DM_SQRT_2_OVER_PI 0.79788456080286535588 /* sqrt(2 / pi) */

#endif
