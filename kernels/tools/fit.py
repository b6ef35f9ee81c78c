# weighted minimax fits by Lawson / Remez-lite in mpmath
import numpy as np
from mpmath import mp, mpf, exp, erfc, tanh, matrix, lu_solve, log, cos, pi
mp.dps=40
def fit(f, w, lo, hi, basis, n, iters=12):
    # Remez exchange: minimise max |w*(sum c_i b_i - f)|
    xs=[(lo+hi)/2+(hi-lo)/2*cos(pi*(n-i)/mpf(n)) for i in range(n+1)]
    grid=[lo+(hi-lo)*mpf(i)/3000 for i in range(3001)]
    F=[f(x) for x in grid]; W=[w(x) for x in grid]
    for it in range(iters):
        A=matrix(n+1,n+1); y=matrix(n+1,1)
        for r,x in enumerate(xs):
            for c in range(n): A[r,c]=basis(c,x)
            A[r,n]=(-1)**r/w(x); y[r]=f(x)
        s=lu_solve(A,y); c=[s[i] for i in range(n)]
        e=[W[j]*(sum(c[i]*basis(i,x) for i in range(n))-F[j]) for j,x in enumerate(grid)]
        # extrema, alternating
        ext=[]
        cur=[0]
        for j in range(1,len(grid)):
            if (e[j]>0)!=(e[cur[-1]]>0):
                ext.append(max(cur,key=lambda t:abs(e[t]))); cur=[j]
            else: cur.append(j)
        ext.append(max(cur,key=lambda t:abs(e[t])))
        while len(ext)>n+1:
            if abs(e[ext[0]])<abs(e[ext[-1]]): ext.pop(0)
            else: ext.pop()
        if len(ext)<n+1: print('few',len(ext)); break
        xs=[grid[j] for j in ext]
    print('maxerr',float(max(abs(t) for t in e)))
    return [float(t) for t in c]
L=log(mpf(2))/2*mpf('1.001')
print('exp', fit(lambda x:exp(x)-1-x, lambda x:exp(-x), -L, L, lambda i,x:x**(i+2), 5))
# tanh small: tanh(x)=x+x^3 P(x^2) on (0,0.6)
print('tanh', fit(lambda x:tanh(x)-x, lambda x:1/tanh(x), mpf('0.01'), mpf('0.65'), lambda i,x:x**(2*i+3), 5))
# erfcx(z)= t*P(t), t=1/(1+a z), z in [0,10]
for a in ('0.3275','0.4','0.5'):
  for n in (7,8,9):
    a_=mpf(a)
    t0=1/(1+a_*10)
    zf=lambda t:(1/t-1)/a_
    f=lambda t: exp(zf(t)**2)*erfc(zf(t))
    print('erfc',a,n, fit(f, lambda t:1/f(t), t0, mpf(1), lambda i,t:t**(i+1), n))
