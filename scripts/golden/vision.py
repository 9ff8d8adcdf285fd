"""Boxes, regions of interest and focal loss, as torchvision.ops has them."""

import torch
import torchvision.ops as ops

from cases import bf16, case, f32, f64, family, frozen, i64, r


def boxes(*shape, dtype=f32, side=8.0):
    """Boxes "xyxy" within a square of this side."""
    corner = r(*shape, 2, dtype=f64, lo=0, hi=side / 2)
    size = r(*shape, 2, dtype=f64, lo=0.5, hi=side / 2)
    return torch.cat([corner, corner + size], -1).to(dtype)


@family("sum")
def vision():
    overlaps()
    suppression()
    regions()
    for d in (f32, f64):
        for opts in ({}, {"alpha": -1, "gamma": 1.5}, {"alpha": 0.7, "reduction": "mean"},
                     {"reduction": "sum"}):
            targets = frozen((r(3, 4, dtype=d) > 0).to(d))
            case("sigmoid_focal_loss", r(3, 4, dtype=d), targets, fn=ops.sigmoid_focal_loss,
                 **opts)


def overlaps():
    formats = ("xyxy", "xywh", "cxcywh")
    for before in formats:
        for after in formats:
            case("box_convert", boxes(3), before, after, fn=ops.box_convert)
    case("box_convert", boxes(2, 3, dtype=i64), "xyxy", "xywh", fn=ops.box_convert)
    for d in (f32, f64, bf16):
        case("box_area", boxes(4, dtype=d), fn=ops.box_area, grad=d != bf16)
        case("box_iou", boxes(4, dtype=d), boxes(3, dtype=d), fn=ops.box_iou, grad=d != bf16)
    case("box_area", boxes(2, 3), fn=ops.box_area, fmt="cxcywh")
    case("box_iou", boxes(3, dtype=i64), boxes(2, dtype=i64), fn=ops.box_iou)
    case("box_iou", boxes(2, 3), boxes(2, 4), fn=ops.box_iou)
    for fmt in formats[1:]:
        case("box_iou", boxes(3), boxes(2), fn=ops.box_iou, fmt=fmt)
    case("clip_boxes_to_image", r(5, 4, hi=9), (6, 4), fn=ops.clip_boxes_to_image)
    case("remove_small_boxes", boxes(7), 2.0, fn=ops.remove_small_boxes, pos=(0,), kind="exact")
    for d in (f32, f64):
        case("generalized_box_iou", boxes(4, dtype=d), boxes(3, dtype=d),
             fn=ops.generalized_box_iou)
        for op in ("distance_box_iou", "complete_box_iou"):
            case(op, boxes(4, dtype=d), boxes(3, dtype=d), fn=getattr(ops, op))
        for op in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
            for reduction in ("none", "mean", "sum"):
                case(op, boxes(6, dtype=d), boxes(6, dtype=d), fn=getattr(ops, op),
                     reduction=reduction)
            case(op, boxes(dtype=d), boxes(dtype=d), fn=getattr(ops, op))
    touching = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
    beside = torch.tensor([[2.0, 0.25, 3, 1.5], [5, 6, 7, 7.5]])
    case("generalized_box_iou_loss", touching, beside, fn=ops.generalized_box_iou_loss)


def suppression():
    for n, side, threshold in ((1, 8, 0.5), (12, 8, 0.3), (40, 8, 0.5), (40, 16, 0.1)):
        b, scores = boxes(n, side=side), torch.randint(0, 6, (n,)).to(f32)
        case("nms", b, scores, threshold, fn=ops.nms, pos=(0,), grad=False, kind="exact")
        case("batched_nms", b, scores, torch.randint(0, 3, (n,)), threshold,
             fn=ops.boxes._batched_nms_vanilla if n == 1 else stable, pos=(0,), grad=False,
             kind="exact")
    case("nms", boxes(0), torch.zeros(0), 0.5, fn=ops.nms, pos=(0,), grad=False, kind="exact")


def stable(b, scores, idxs, threshold):
    """batched_nms, with equal scores in the order that they came in."""
    kept = ops.batched_nms(b, scores, idxs, threshold).sort().values
    return kept[scores[kept].sort(descending=True, stable=True).indices]


def regions():
    def of_images(x, rois, size, **opts):
        """Images in rois count from 1, as in the file."""
        first = torch.zeros_like(rois)
        first[:, 0] = 1
        return ops.roi_align(x, rois - first, size, **opts)

    images = torch.tensor([[2.0], [1], [2], [2]])
    wide = torch.tensor([[-3.0, -2, 4, 5], [1, 1, 1.25, 1.5], [2, 3, 12, 14], [0, 0, 7, 6]])
    for d in (f32, f64):
        rois = frozen(torch.cat([images, wide], 1).to(d))
        for opts in ({}, {"aligned": True}, {"sampling_ratio": 2},
                     {"sampling_ratio": 3, "aligned": True, "spatial_scale": 0.5}):
            case("roi_align", r(2, 3, 6, 7, dtype=d), rois, (2, 3), fn=of_images, **opts)
        case("roi_align", r(2, 2, 5, 5, dtype=d), [frozen(boxes(2, dtype=d)),
             frozen(boxes(1, dtype=d))], 2, fn=ops.roi_align, sampling_ratio=2, aligned=True)
    backward = frozen(torch.tensor([[1.0, 4, 4, 2, 2], [1, 0, 0, 3, 3]]))
    case("roi_align", r(1, 1, 5, 5), backward, 2, fn=of_images, aligned=True)
    case("roi_align", r(1, 1, 5, 5), frozen(torch.zeros(0, 5)), 2, fn=of_images, grad=False)
