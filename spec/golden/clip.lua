-- What PyTorch 2.15.0+cu132 answers; written by scripts/golden.
-- luacheck: ignore
return {torch="2.15.0+cu132",kind="train",cases={
{op="clip_grad_norm_",grads={{3.0,4.0}},args={1.0},norm=5,out={{0.5999999,0.79999983}},name="clip_grad_norm_ [[3.0, 4.0]] 1.0 "},
{op="clip_grad_norm_",grads={{3.0},{4.0}},args={1.0},norm=5,out={{0.5999999},{0.79999983}},name="clip_grad_norm_ [[3.0], [4.0]] 1.0 "},
{op="clip_grad_norm_",grads={{0.6,0.8}},args={1.0},norm=1,out={{0.5999994,0.79999924}},name="clip_grad_norm_ [[0.6, 0.8]] 1.0 "},
{op="clip_grad_norm_",grads={{0.3,0.4}},args={1.0},norm=0.5,out={{0.3,0.4}},name="clip_grad_norm_ [[0.3, 0.4]] 1.0 "},
{op="clip_grad_norm_",grads={{3.0,-4.0},{1.0}},args={2.0,{norm_type=1/0}},norm=4,out={{1.4999996,-1.9999995},{0.49999988}},name="clip_grad_norm_ [[3.0, -4.0], [1.0]] 2.0 {'norm_type': inf}"},
{op="clip_grad_norm_",grads={{3.0,-4.0}},args={1.0,{norm_type=1.0}},norm=7,out={{0.42857134,-0.5714285}},name="clip_grad_norm_ [[3.0, -4.0]] 1.0 {'norm_type': 1.0}"},
{op="clip_grad_norm_",grads={{1.0,4.0}},args={1.0,{norm_type=0.5}},norm=9,out={{0.1111111,0.4444444}},name="clip_grad_norm_ [[1.0, 4.0]] 1.0 {'norm_type': 0.5}"},
{op="clip_grad_norm_",grads={{3.0,4.0}},args={0.0},norm=5,out={{0,0}},name="clip_grad_norm_ [[3.0, 4.0]] 0.0 "},
{op="clip_grad_norm_",grads={{1/0,1.0}},args={1.0},norm=1/0,out={{0/0,0}},name="clip_grad_norm_ [[inf, 1.0]] 1.0 "},
{op="clip_grad_norm_",grads={{0/0,1.0}},args={1.0},norm=0/0,out={{0/0,0/0}},name="clip_grad_norm_ [[nan, 1.0]] 1.0 "},
{op="clip_grad_norm_",grads={{1e+20,1e+20}},args={1.0},norm=1/0,out={{0,0}},name="clip_grad_norm_ [[1e+20, 1e+20]] 1.0 "},
{op="clip_grad_norm_",grads={{0.0,0.0}},args={1.0},norm=0,out={{0,0}},name="clip_grad_norm_ [[0.0, 0.0]] 1.0 "},
{op="clip_grad_value_",grads={{-3.0,-2.0,0.0,2.6,1/0,-1/0,0/0}},args={2.5},out={f32(0,7)},name="clip_grad_value_ 2.5"},
}}
